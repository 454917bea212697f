# cython: language_level=3
"""Writes past the event loop: bytes for a plain socket go to the kernel at once, without the transport's queue between.

uvloop keeps what is written until its turn is over, which costs a stream's event about as much as all else that the
gateway does with it. What the kernel does not take goes to the transport, and so does all after it until the transport
has written it; errors are left for the transport to meet. So order, limits and ends stay the transport's.
"""

cdef extern from "sys/socket.h" nogil:
    ssize_t send(int descriptor, const void *data, size_t size, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL


cdef class Outlet:
    """One transport's way out. Nothing else may write to that transport."""

    cdef object _transport, _is_closing  # of its methods only the one that each write asks: a bound one takes 64 bytes
    cdef int _descriptor
    cdef bint _behind

    def __init__(self, transport, int descriptor):
        self._transport = transport
        self._is_closing = transport.is_closing
        self._descriptor = descriptor
        self._behind = True  # something may have been written before

    def write(self, bytes data not None):
        """As the transport's. One that is closing keeps its descriptor until its protocol has heard of it; what is written
        to it then is its own affair."""
        cdef ssize_t sent
        if self._behind:
            self._behind = self._transport.get_write_buffer_size() > 0
        if not self._behind and not self._is_closing():
            sent = send(self._descriptor, <const char *> data, len(data), MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == len(data):
                return
            self._behind = True
            if sent > 0:
                data = data[sent:]
        self._transport.write(data)

    def writelines(self, parts):
        """Much at once: by the transport, in few writes."""
        self._behind = True
        self._transport.writelines(parts)
