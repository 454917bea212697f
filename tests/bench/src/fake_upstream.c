/* Fake OpenAI-compatible inference server for gateway benchmarks.
 *
 * One epoll thread serves several ports, so one process stands for several
 * backends.  What a request gets is decided by its JSON body:
 *   "stream": true      SSE stream, otherwise one JSON object
 *   "max_tokens": N     number of streamed events (default 16; "max_completion_tokens" too)
 *   "seed": D           milliseconds between events (0 = as fast as possible)
 *   "include_usage": true   one more event with the usage, after the last
 * GET /v1/models lists the model "m"; /health and any other GET answer 200;
 * /metrics is Prometheus text; /render and /tokenize are 404.
 * Each event is about 200 bytes and goes out in a chunk and a write of its own
 * (-b K: K events per write).  Its text is "T<monotonic ns>", the moment it was
 * handed to the kernel, so a client on this host can tell how long it travelled.
 *
 * usage: fake_upstream -p 9101,9102 [-b K]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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

typedef struct conn {
    int fd, is_listener, port;
    char *in; size_t in_len, in_cap;
    char *out; size_t out_off, out_len, out_cap;
    int streaming, left, usage, want_write, heap_pos;
    uint64_t delay, due;
} conn;

static int ep, burst = 1;
static conn **heap; static int heap_n, heap_cap;
static conn **graveyard; static int grave_n, grave_cap;

static uint64_t now_ns(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
static void heap_set(int i, conn *c) { heap[i] = c; c->heap_pos = i; }
static void heap_up(int i) {
    conn *c = heap[i];
    while (i > 0) { int p = (i - 1) / 2; if (heap[p]->due <= c->due) break; heap_set(i, heap[p]); i = p; }
    heap_set(i, c);
}
static void heap_down(int i) {
    conn *c = heap[i];
    for (;;) {
        int k = 2 * i + 1;
        if (k >= heap_n) break;
        if (k + 1 < heap_n && heap[k + 1]->due < heap[k]->due) k++;
        if (heap[k]->due >= c->due) break;
        heap_set(i, heap[k]); i = k;
    }
    heap_set(i, c);
}
static void heap_add(conn *c) {
    if (heap_n == heap_cap) {
        heap_cap = heap_cap ? heap_cap * 2 : 256;
        heap = realloc(heap, sizeof *heap * (size_t)heap_cap);
    }
    heap[heap_n] = c; c->heap_pos = heap_n; heap_up(heap_n++);
}
static void heap_del(conn *c) {
    int i = c->heap_pos; if (i < 0) return;
    c->heap_pos = -1; conn *last = heap[--heap_n];
    if (i < heap_n) { heap_set(i, last); heap_up(i); heap_down(last->heap_pos); }
}
static void arm(conn *c, int write_too) {
    if (c->want_write == write_too) return;
    c->want_write = write_too;
    struct epoll_event e = {.events = EPOLLIN | (write_too ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
static void drop(conn *c) {
    if (c->fd < 0) return;
    heap_del(c); close(c->fd); c->fd = -1;
    if (grave_n == grave_cap) {
        grave_cap = grave_cap ? grave_cap * 2 : 64;
        graveyard = realloc(graveyard, sizeof *graveyard * (size_t)grave_cap);
    }
    graveyard[grave_n++] = c;
}
static void put(conn *c, const char *p, size_t n) {
    if (c->out_len + n > c->out_cap) { c->out_cap = (c->out_len + n) * 2; c->out = realloc(c->out, c->out_cap); }
    memcpy(c->out + c->out_len, p, n); c->out_len += n;
}
/* 0 = all sent, 1 = the socket is full, -1 = connection gone */
static int flush(conn *c) {
    while (c->out_off < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) { arm(c, 1); return 1; }
            drop(c); return -1;
        }
        c->out_off += (size_t)n;
    }
    c->out_off = c->out_len = 0; arm(c, 0);
    return 0;
}
static void put_chunk(conn *c, const char *event, int n) {
    char frame[576];
    int m = snprintf(frame, sizeof frame, "%x\r\n%s\r\n", n, event);
    put(c, frame, (size_t)m);
}
static void put_usage(conn *c) {
    static const char event[] =
        "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
        "\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":150,\"completion_tokens\":64,"
        "\"total_tokens\":214}}\n\n";
    put_chunk(c, event, (int)sizeof event - 1);
}
static void put_event(conn *c, const char *fmt_tail) {
    char ev[512];
    int n = snprintf(ev, sizeof ev,
        "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
        "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"T%llu\"},\"finish_reason\":%s}]}\n\n",
        (unsigned long long)now_ns(), fmt_tail);
    put_chunk(c, ev, n);
}
static void respond(conn *c);
/* sends what is due of a stream; bounded so that other connections get their turn */
static void pump(conn *c) {
    static const char last[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    uint64_t t = now_ns();
    for (int round = 0; round < 8; round++) {
        if (c->left > 0) {
            for (int k = 0; k < burst && c->left > 0; k++, c->left--) put_event(c, c->left == 1 ? "\"stop\"" : "null");
            if (c->left == 0) {
                if (c->usage) put_usage(c);
                put(c, last, sizeof last - 1);
            }
        }
        int r = flush(c);
        if (r < 0) return;
        if (c->left == 0) { c->streaming = 0; heap_del(c); if (r == 0) respond(c); return; }
        if (r > 0) { heap_del(c); return; }      /* goes on when writable */
        if (c->delay) {
            c->due += c->delay; if (c->due < t) c->due = t + c->delay;
            if (c->heap_pos < 0) heap_add(c); else heap_down(c->heap_pos);
            return;
        }
    }
    c->due = t;                                   /* no delay: again after the others */
    if (c->heap_pos < 0) heap_add(c); else heap_down(c->heap_pos);
}
static long field(const char *b, size_t n, const char *key, long dflt) {
    const char *p = memmem(b, n, key, strlen(key));
    if (!p) return dflt;
    p += strlen(key);
    while (p < b + n && (*p == ' ' || *p == ':')) p++;
    return p < b + n && *p >= '0' && *p <= '9' ? strtol(p, NULL, 10) : dflt;
}
static int is_true(const char *b, size_t n, const char *key) {
    const char *p = memmem(b, n, key, strlen(key));
    if (!p) return 0;
    p += strlen(key);
    while (p < b + n && (*p == ' ' || *p == ':')) p++;
    return p < b + n && *p == 't';
}
static void put_body(conn *c, const char *type, const char *body) {
    char h[256]; size_t n = strlen(body);
    int m = snprintf(h, sizeof h, "HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: %s\r\n"
                     "content-length: %zu\r\n\r\n", type, n);
    put(c, h, (size_t)m); put(c, body, n);
}
static void put_json(conn *c, const char *body) { put_body(c, "application/json", body); }
static void put_answer(conn *c) {
    char j[1024];
    snprintf(j, sizeof j,
        "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"m\","
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"T%llu %0256d\"},\"logprobs\":null,"
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":150,\"completion_tokens\":64,\"total_tokens\":214}}",
        (unsigned long long)now_ns(), 0);
    put_json(c, j);
}
static void start_stream(conn *c, const char *b, size_t n) {
    static const char h[] = "HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                            "transfer-encoding: chunked\r\n\r\n";
    c->left = (int)field(b, n, "\"max_tokens\"", field(b, n, "\"max_completion_tokens\"", 16));
    if (c->left < 1) c->left = 1;
    c->delay = (uint64_t)field(b, n, "\"seed\"", 0) * 1000000ull;
    c->usage = is_true(b, n, "\"include_usage\"");
    c->due = now_ns(); c->streaming = 1;
    put(c, h, sizeof h - 1);
}
static void answer_get(conn *c, size_t head) {
    if (memmem(c->in, head < 64 ? head : 64, "/v1/models", 10))
        put_json(c, "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1700000000,"
                    "\"owned_by\":\"fake\",\"max_model_len\":131072}]}");
    else if (!strncmp(c->in, "GET /metrics", 12))
        put_body(c, "text/plain; version=0.0.4; charset=utf-8",
                 "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"m\"} 0\n"
                 "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"m\"} 0\n"
                 "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0\n");
    else
        put_json(c, "{\"status\":\"ok\",\"model_path\":\"m\",\"served_model_name\":\"m\",\"model_id\":\"m\","
                    "\"is_generation\":true,\"version\":\"0.0.0\",\"load\":0}");
}
/* answers every complete request in the input buffer */
static void respond(conn *c) {
    while (c->fd >= 0 && !c->streaming && c->in_len) {
        char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
        if (!end) return;
        size_t head = (size_t)(end - c->in) + 4, body = 0, total;
        int chunked = 0;
        for (char *l = memchr(c->in, '\n', head); l && l + 1 < end;
             l = memchr(l + 1, '\n', (size_t)(c->in + head - l - 1))) {
            if (!strncasecmp(l + 1, "content-length:", 15)) body = strtoul(l + 16, NULL, 10);
            if (!strncasecmp(l + 1, "transfer-encoding:", 18)) chunked = 1;
        }
        if (chunked) {
            char *z = memmem(c->in + head, c->in_len - head, "0\r\n\r\n", 5);
            if (!z) return;
            body = (size_t)(z - (c->in + head)) + 5;
        }
        total = head + body;
        if (c->in_len < total) return;
        char *b = c->in + head;
        size_t line = head < 80 ? head : 80;
        if (memmem(c->in, line, "/render", 7) || memmem(c->in, line, "/tokenize", 9)) {
            static const char no[] = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\n"
                                     "content-length: 2\r\n\r\n{}";
            put(c, no, sizeof no - 1);            /* helper calls of some routers */
        } else if (strncmp(c->in, "POST ", 5)) answer_get(c, head);
        else if (is_true(b, body, "\"stream\"")) start_stream(c, b, body);
        else put_answer(c);
        memmove(c->in, c->in + total, c->in_len - total); c->in_len -= total;
        if (c->streaming) pump(c);
        else if (flush(c) != 0) return;
    }
}
static void on_readable(conn *c) {
    for (;;) {
        if (c->in_cap - c->in_len < 16384) {
            c->in_cap = c->in_cap * 2 + 32768;
            c->in = realloc(c->in, c->in_cap);
        }
        ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
        if (n > 0) { c->in_len += (size_t)n; if ((size_t)n < c->in_cap - c->in_len) break; continue; }
        if (n < 0 && errno == EAGAIN) break;
        drop(c); return;
    }
    respond(c);
}
static conn *new_conn(int fd, int listener) {
    conn *c = calloc(1, sizeof *c); c->fd = fd; c->is_listener = listener; c->heap_pos = -1;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    return c;
}
int main(int argc, char **argv) {
    char *ports = "9101"; int o, one = 1;
    while ((o = getopt(argc, argv, "p:b:")) > 0) {
        if (o == 'p') ports = optarg; else if (o == 'b') burst = atoi(optarg); else return 2;
    }
    signal(SIGPIPE, SIG_IGN); ep = epoll_create1(0);
    for (char *p = strtok(strdup(ports), ","); p; p = strtok(NULL, ",")) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(p)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (bind(fd, (void *)&a, sizeof a) || listen(fd, 4096)) { perror(p); return 1; }
        new_conn(fd, 1);
    }
    struct epoll_event ev[256];
    for (;;) {
        int wait = -1;
        if (heap_n) {
            uint64_t t = now_ns();
            wait = heap[0]->due <= t ? 0 : (int)((heap[0]->due - t + 999999) / 1000000);
        }
        int n = epoll_wait(ep, ev, 256, wait);
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (c->fd < 0) continue;
            if (c->is_listener) {
                int fd;
                while ((fd = accept4(c->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    new_conn(fd, 0);
                }
                continue;
            }
            if (ev[i].events & (EPOLLERR | EPOLLHUP)) { drop(c); continue; }
            if (ev[i].events & EPOLLOUT) {
                int r = flush(c);
                if (r < 0) continue;
                if (r == 0) { if (c->streaming) pump(c); else respond(c); }
            }
            if (c->fd >= 0 && (ev[i].events & EPOLLIN)) on_readable(c);
        }
        uint64_t t = now_ns();
        for (int k = 0; k < 4096 && heap_n && heap[0]->due <= t; k++) pump(heap[0]);
        while (grave_n) { conn *c = graveyard[--grave_n]; free(c->in); free(c->out); free(c); }
    }
}
