"""Work that goes on for as long as the gateway does, whatever mistake of ours one round of it meets. Shell.

A task that ends by an exception ends silently: nobody would probe, plan or keep house any more, and nothing would say so.
Here the exception is told to the loop's handler, which logs it, and the work begins anew. It must never swallow a cancel.
"""

import asyncio
from collections.abc import Callable, Coroutine

AGAIN_S = 1.0

Work = Callable[[], Coroutine[object, object, None]]


async def endless(work: Work, what: str) -> None:
    """Do it until it returns or this is cancelled. `what` names it in the log."""
    loop = asyncio.get_running_loop()
    while True:
        task = asyncio.ensure_future(work())
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            await asyncio.wait((task,))
        if task.cancelled() or (error := task.exception()) is None:
            return
        loop.call_exception_handler({"message": f"{what} failed, and begins anew", "exception": error})
        await asyncio.sleep(AGAIN_S)
