/* Load generator for OpenAI-style chat endpoints: one epoll thread, keep-alive.
 *
 * closed loop:  -c CONNS each send the next request as soon as one is answered
 * open loop:    -r RATE requests a second are due; a request that finds no idle
 *               connection waits, and its wait counts as latency
 * ends after -n requests, or after -t seconds; prints one JSON line.
 *
 * -s streams (-k events each, -d ms between them); without it, plain requests.
 * -b prompt bytes; -P path; -H "Name: value" extra header (repeatable);
 * -R do not look for time stamps.
 *
 * relay_us: time from the fake upstream's write of an event to its arrival here.
 * usage: loadgen -p PORT [-c 1] [-n 1000] [-t 0] [-r 0] [-s] [-k 16] [-d 0] [-b 600]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct { uint64_t *v; size_t n, cap; } vec;
static void push(vec *a, uint64_t x) {
    if (a->n == a->cap) { a->cap = a->cap ? a->cap * 2 : 4096; a->v = realloc(a->v, a->cap * sizeof *a->v); }
    a->v[a->n++] = x;
}
static int cmp(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}
static double pct(vec *a, double q) { return a->n ? (double)a->v[(size_t)((double)(a->n - 1) * q)] / 1000.0 : 0; }

enum { IDLE, HEAD, BODY };
typedef struct {
    int fd, state, status, chunked, close_after, nl, got_event;
    char head[8192]; size_t head_len;
    long left;                 /* bytes left of the body or of the chunk */
    int cs; long csize;        /* chunk parser: 0 size, 1 rest of size line, 2 data, 3 CRLF, 4 trailer */
    char *out; size_t out_off, out_len;
    uint64_t t0;
} conn;

static int ep, port = 8000, nconn = 1, stream, events = 16, delay, prompt = 600, relay_on = 1;
static long max_n = 1000, sent, done, errors, n_events; static double secs, rate;
static const char *path = "/v1/chat/completions"; static char extra[8192];
static char *req; static size_t req_len, seq_at;
static vec lat, ttfb, relay;
static uint64_t t_start, t_end, next_due, *due_q; static size_t dq_h, dq_t;

static uint64_t now_ns(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
static void build(void) {
    char *pad = malloc((size_t)prompt + 1), *body = malloc((size_t)prompt + 512);
    static const char w[] = "the gateway relays tokens from a backend to its client ";
    for (int i = 0; i < prompt; i++) pad[i] = w[i % (int)(sizeof w - 1)];
    pad[prompt] = 0;
    int n = sprintf(body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"00000000 %s\"}],"
                    "\"max_tokens\":%d,\"seed\":%d,\"temperature\":0.0%s}",
                    pad, events, delay, stream ? ",\"stream\":true" : "");
    req = malloc((size_t)n + sizeof extra + 1024);
    int h = sprintf(req, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: loadgen\r\n"
                    "Authorization: Bearer sk-1234\r\nContent-Type: application/json\r\nAccept: */*\r\n"
                    "%sContent-Length: %d\r\n\r\n", path, port, extra, n);
    memcpy(req + h, body, (size_t)n + 1); req_len = (size_t)(h + n);
    seq_at = (size_t)(strstr(req, "00000000 ") - req);
}
static int open_conn(conn *c) {
    int one = 1; c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(c->fd, (void *)&a, sizeof a) && errno != EINPROGRESS) return -1;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    return epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}
static void try_send(conn *c) {
    while (c->out_off < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
        if (n < 0) return;
        c->out_off += (size_t)n;
    }
}
static int may_start(void) { return secs > 0 ? now_ns() < t_end : sent < max_n; }
static void start(conn *c, uint64_t t0) {
    if (!c->out) { c->out = malloc(req_len + 1); memcpy(c->out, req, req_len); }
    char num[16]; snprintf(num, sizeof num, "%08ld", sent % 100000000); memcpy(c->out + seq_at, num, 8);
    c->out_off = 0; c->out_len = req_len; c->state = HEAD; c->head_len = 0; c->status = 0;
    c->chunked = 0; c->close_after = 0; c->nl = 0; c->got_event = 0; c->cs = 0; c->csize = 0; c->left = -1;
    c->t0 = t0; sent++;
    try_send(c);
}
static void next(conn *c) {
    c->state = IDLE;
    if (rate > 0) { if (dq_h < dq_t) start(c, due_q[dq_h++]); return; }
    if (may_start()) start(c, now_ns());
}
static void reopen(conn *c) { close(c->fd); open_conn(c); }
static void finish(conn *c, int ok) {
    uint64_t t = now_ns(); done++;
    if (ok && c->status == 200) push(&lat, t - c->t0); else errors++;
    if (!ok || c->close_after) reopen(c);
    next(c);
}
static void scan(conn *c, const char *p, size_t n, uint64_t t) {
    if (!stream) return;
    for (size_t i = 0; i < n;) {                       /* events end in an empty line */
        const char *q = memchr(p + i, '\n', n - i);
        if (!q) { c->nl = 0; break; }
        size_t at = (size_t)(q - p);
        if (at > i) { if (!(at - i == 1 && p[i] == '\r')) c->nl = 0; }
        if (++c->nl == 2) {
            n_events++; c->nl = 0;
            if (!c->got_event) { c->got_event = 1; push(&ttfb, t - c->t0); }
        }
        i = at + 1;
    }
    if (!relay_on) return;
    for (const char *q = p; (q = memmem(q, (size_t)(p + n - q), "\"T", 2));) {
        q += 2; uint64_t v = 0; const char *s = q;
        while (q < p + n && *q >= '0' && *q <= '9') v = v * 10 + (uint64_t)(*q++ - '0');
        if (q < p + n && *q == '"' && q - s > 8 && t > v) push(&relay, t - v);
    }
}
static void chunk_begins(conn *c) { c->left = c->csize; c->csize = 0; c->cs = c->left ? 2 : 4; c->head_len = 0; }
static void body(conn *c, const char *p, size_t n) {
    uint64_t t = now_ns();
    if (!c->chunked) {
        scan(c, p, n, t);
        if (c->left >= 0) { c->left -= (long)n; if (c->left <= 0) finish(c, 1); }
        return;
    }
    size_t i = 0;
    while (i < n) {
        char ch = p[i];
        switch (c->cs) {
        case 0:
            if (ch == '\n') chunk_begins(c);
            else if (ch >= '0' && ch <= '9') c->csize = c->csize * 16 + ch - '0';
            else if ((ch | 32) >= 'a' && (ch | 32) <= 'f') c->csize = c->csize * 16 + (ch | 32) - 'a' + 10;
            else if (ch != '\r') c->cs = 1;
            i++; break;
        case 1: if (ch == '\n') chunk_begins(c); i++; break;
        case 2: {
            size_t m = n - i < (size_t)c->left ? n - i : (size_t)c->left;
            scan(c, p + i, m, t); i += m; c->left -= (long)m; if (!c->left) c->cs = 3; break; }
        case 3: if (ch == '\n') c->cs = 0; i++; break;
        default: /* trailer: ends at an empty line */
            i++;
            if (ch == '\n') { if (!c->head_len) { finish(c, 1); return; } c->head_len = 0; }
            else if (ch != '\r') c->head_len++;
        }
    }
}
static void got(conn *c, const char *p, size_t n) {
    if (c->state == IDLE) return;
    if (c->state == BODY) { body(c, p, n); return; }
    size_t m = n < sizeof c->head - c->head_len ? n : sizeof c->head - c->head_len;
    size_t before = c->head_len;
    memcpy(c->head + c->head_len, p, m); c->head_len += m;
    char *e = memmem(c->head, c->head_len, "\r\n\r\n", 4);
    if (!e) return;
    size_t used = (size_t)(e - c->head) + 4 - before; e[2] = 0;
    c->status = atoi(c->head + 9); c->left = -1;
    for (char *l = strstr(c->head, "\r\n"); l; l = strstr(l + 2, "\r\n")) {
        if (!strncasecmp(l + 2, "content-length:", 15)) c->left = strtol(l + 17, NULL, 10);
        if (!strncasecmp(l + 2, "transfer-encoding: chunked", 26)) c->chunked = 1;
        if (!strncasecmp(l + 2, "connection: close", 17)) c->close_after = 1;
    }
    if (c->status != 200 && errors < 3)
        fprintf(stderr, "status %d: %.*s\n", c->status, (int)(n - used > 300 ? 300 : n - used), p + used);
    c->state = BODY; c->head_len = 0;
    if (!c->chunked && c->left < 0) c->close_after = 1;
    if (!stream) push(&ttfb, now_ns() - c->t0);
    if (!c->chunked && c->left == 0) { finish(c, 1); return; }
    if (n > used) body(c, p + used, n - used);
}
int main(int argc, char **argv) {
    int o;
    while ((o = getopt(argc, argv, "p:c:n:t:r:sk:d:b:P:RH:")) > 0) switch (o) {
        case 'p': port = atoi(optarg); break; case 'c': nconn = atoi(optarg); break;
        case 'n': max_n = atol(optarg); break; case 't': secs = atof(optarg); break;
        case 'r': rate = atof(optarg); break; case 's': stream = 1; break;
        case 'k': events = atoi(optarg); break; case 'd': delay = atoi(optarg); break;
        case 'b': prompt = atoi(optarg); break; case 'P': path = optarg; break;
        case 'H': snprintf(extra + strlen(extra), sizeof extra - strlen(extra), "%s\r\n", optarg); break;
        case 'R': relay_on = 0; break; default: return 2; }
    signal(SIGPIPE, SIG_IGN); build(); ep = epoll_create1(0);
    conn *cs = calloc((size_t)nconn, sizeof *cs);
    for (int i = 0; i < nconn; i++) if (open_conn(&cs[i])) { perror("connect"); return 1; }
    t_start = now_ns(); t_end = t_start + (uint64_t)(secs * 1e9);
    uint64_t hard = t_start + 300000000000ull;   /* whatever happens, an end after five minutes */
    uint64_t gap = rate > 0 ? (uint64_t)(1e9 / rate) : 0; next_due = t_start + gap;
    if (rate > 0) due_q = malloc(sizeof *due_q * (size_t)((secs > 0 ? rate * secs : (double)max_n) + 1024));
    else for (int i = 0; i < nconn; i++) if (may_start()) start(&cs[i], now_ns());
    long issued = 0; struct epoll_event ev[512]; static char buf[262144];
    for (;;) {
        uint64_t t = now_ns();
        if (t > hard) break;
        if (rate > 0) {
            while (next_due <= t && (secs > 0 ? next_due < t_end : issued < max_n)) {
                due_q[dq_t++] = next_due; next_due += gap; issued++;
            }
            for (int i = 0; i < nconn && dq_h < dq_t; i++) if (cs[i].state == IDLE) start(&cs[i], due_q[dq_h++]);
            if (done >= issued && (secs > 0 ? t >= t_end : issued >= max_n)) break;
        } else if (done >= sent && !may_start()) break;
        int wait = 50;
        if (rate > 0) { wait = next_due > t ? (int)((next_due - t) / 1000000) : 0; if (wait > 50) wait = 50; }
        int n = epoll_wait(ep, ev, 512, wait);
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (c->state != IDLE && c->out_off < c->out_len) try_send(c);
            if (!(ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            for (;;) {
                int fd = c->fd;
                ssize_t k = recv(fd, buf, sizeof buf, 0);
                if (k > 0) { got(c, buf, (size_t)k); if (c->fd != fd) break; continue; }
                if (k < 0 && errno == EAGAIN) break;
                if (c->state == IDLE) reopen(c);
                else if (c->state == BODY && !c->chunked && c->left < 0) finish(c, 1);
                else finish(c, 0);
                break;
            }
        }
    }
    double el = (double)(now_ns() - t_start) / 1e9;
    vec *all[] = {&lat, &ttfb, &relay};
    for (int i = 0; i < 3; i++) qsort(all[i]->v, all[i]->n, sizeof(uint64_t), cmp);
    printf("{\"secs\":%.4f,\"done\":%ld,\"errors\":%ld,\"rps\":%.1f,\"events\":%ld,\"events_s\":%.1f,"
           "\"lat_us\":[%.1f,%.1f],\"ttfb_us\":[%.1f,%.1f],\"relay_us\":[%.1f,%.1f]}\n",
           el, done, errors, (double)(done - errors) / el, n_events, (double)n_events / el,
           pct(&lat, .5), pct(&lat, .99), pct(&ttfb, .5), pct(&ttfb, .99), pct(&relay, .5), pct(&relay, .99));
    return 0;
}
