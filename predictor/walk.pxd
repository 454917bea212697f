cimport cython


cdef class Walk:
    cdef int[::1] roots, feature, low, high
    cdef double[::1] limit, seen, total
    @cython.locals(place=cython.int, tree=cython.int, node=cython.int, looked=cython.int)
    cpdef tuple sums(self, numbers)


cdef class Table:
    cdef float[::1] weights, scales
    @cython.locals(gram=cython.int, total=cython.double, square=cython.double)
    cpdef double weighed(self, grams, double least) except? -1.0
