"""Serves an aiohttp application on an address, with an honest base URL, whatever port was free. Shell."""

from aiohttp import web

_BACKLOG = 4096


async def listen(app: web.Application, host: str, port: int, **runner: object) -> tuple[web.AppRunner, str]:
    """The runner, to be cleaned up by whoever asked, and the base URL. `runner` are AppRunner's options. Raises OSError if the
    address is taken."""
    made = web.AppRunner(app, access_log=None, **runner)  # type: ignore[arg-type]
    await made.setup()
    try:
        await web.TCPSite(made, host, port, backlog=_BACKLOG).start()
    except OSError:
        await made.cleanup()
        raise
    literal = f"[{host}]" if ":" in host else host
    return made, f"http://{literal}:{made.addresses[0][1]}"
