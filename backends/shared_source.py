"""Sightings from a snapshot record in shared memory. Shell: it reads a file that another process maps."""

from backends.record_state import sighting
from backends.snapshot_file import DEFAULT_PATH, SnapshotFileReader
from backends.snapshot_record import RecordError, decode
from predictor.sighting import NoSightError, Sighting

__all__ = ["DEFAULT_PATH", "SharedRecordSource"]

STALE_S = 10.0
_WRITER_CHECK_S = 0.1


class SharedRecordSource:
    """States of the engine that writes `path`. One that is busy and has published nothing for `stale_s` is stale: it
    hangs, or one of its steps takes absurdly long. An idle one publishes nothing and stays good while it lives."""

    def __init__(self, path: str, stale_s: float = STALE_S) -> None:
        self._reader = SnapshotFileReader(path)
        self._stale_s = stale_s
        self._last: Sighting | None = None
        self._checked_s = float("-inf")

    def __repr__(self) -> str:
        return f"<SharedRecordSource {self._reader!r}>"

    def look(self, now_s: float) -> Sighting:
        """The newest state. Raises NoSightError."""
        try:
            found = self._newest(now_s)
        except RecordError as error:
            self._last = None
            raise NoSightError(error.cause, str(error)) from None
        age_s = now_s - found.snapshot.taken_s
        if found.busy and age_s > self._stale_s:
            raise NoSightError("stale", f"the engine has published nothing for {age_s:.1f} s")
        return found

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()

    def _newest(self, now_s: float) -> Sighting:
        last = self._last
        if last is not None and self._reader.sequence() == last.number:
            if now_s - self._checked_s > _WRITER_CHECK_S:
                self._reader.check_writer()
                self._checked_s = now_s
            return last
        if last is None:
            self._reader.check_writer()
            self._checked_s = now_s
        number, payload = self._reader.read()
        try:
            self._last = found = sighting(number, decode(payload))
        except ValueError as error:
            raise RecordError(f"the record is malformed: {error}", "torn") from None
        return found
