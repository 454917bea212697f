cdef class Kernel:
    cdef long long[::1] target0, done0, left0, again0, ends0, phases0
    cdef long long[::1] target, done, left, again, ends, phases
    cdef long long[::1] prompt, shared, base, fin, decodes, nxt, prv, queue
    cdef double base_s, prefill_s, over_knee_s, knee, decode_base_s, decode_s, kv_s, pair_s
    cdef readonly long long kv_blocks, bs, cap, chunk, watermark
    cdef public long long steps_max, turns_max
    cdef long long room, n, nrun, free0, nd0, ksum0, part0, target_index, place
    cdef long long working, S, nd, phase, nr, ksum, free, min_free, part, dp, h, t
    cdef readonly long long steps, turns, preemptions, peak_blocks
    cdef readonly double wait_s, ttft_s, e2e_s, ends_sum_s
    cdef double now
    cdef bint drain, hit, prompts_first
    cdef _load_counts(self, who, long long i)
    cdef bint _run(self, long long total) noexcept
    cdef void _reset(self, long long total) noexcept
    cdef bint _enters(self, long long need) noexcept
    cdef void _insert(self, long long r, long long context) noexcept
    cdef void _unlink(self, long long r) noexcept
    cdef void _leave(self, long long r) noexcept
    cdef void _note_end(self, long long r) noexcept
    cdef void _progress(self, long long r, long long computed) noexcept
    cdef long long _need(self, long long k) noexcept
    cdef long long _fits(self) noexcept
    cdef void _spend(self, long long k, long long prefill, double pairs, long long decodes, double context) noexcept
    cdef void _jump(self, long long c) noexcept
    cdef void _entry(self, long long c) noexcept
    cdef bint _crowded(self) noexcept
    cdef bint _retract(self) noexcept
    cdef void _preempt(self, long long r) noexcept
