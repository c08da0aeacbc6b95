/* Clients and broker on both sides of a proxy, in one process that is not the bottleneck.
 *
 * framegen            prints the port of its broker, then reads commands, one a line, and answers each with one line:
 *
 *   open PORT TLS KEY CONNECTIONS IN_FLIGHT REQUEST_BYTES RESPONSE_BYTES   connects to the proxy: "ready"
 *   run SECONDS    each connection keeps IN_FLIGHT requests: JSON with frames (requests answered), p50_us, p99_us, max_us
 *   close          closes the clients' connections: "closed"
 *
 * KEY 0 is Produce 11 (acks=all) with REQUEST_BYTES, KEY 1 is Fetch 12 with RESPONSE_BYTES; the other way is small. All
 * messages are valid, except that records are zeros. The broker answers as soon as a request is complete. Built without -DTLS, TLS has to be 0.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/ssl.h>
#endif

#define MAX_IN_FLIGHT 64
#define CHUNK (256 * 1024)
#define MAX_SAMPLES (1 << 22)

/* One side of a connection. It sends `queued` frames that begin with `head` and end in zeros, `sent` bytes of the first
 * one are out; `ids` are their correlation ids in turn. Of the incoming frame `got` of `length` bytes are in. */
struct side {
    int fd, is_client, writable;
    void *ssl;
    const unsigned char *head;
    size_t head_bytes, frame_bytes, sent;
    int queued;
    uint32_t ids[1024], first_id, last_id;
    unsigned char start[12];
    size_t got, length;
    uint64_t began_ns[MAX_IN_FLIGHT];
    unsigned first_began, last_began;
};

static int poller, listener, running, in_flight, key, waiting;
static unsigned char request_head[128], response_head[128], chunk[CHUNK], received[CHUNK];
static size_t request_head_bytes, request_bytes, response_head_bytes, response_bytes;
static struct side **clients;
static int connections;
static uint32_t *samples;
static size_t sampled;
static uint64_t answered;
#ifdef TLS
static SSL_CTX *tls;
#endif

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "framegen: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void put32(unsigned char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static size_t put(unsigned char *head, size_t at, const void *bytes, size_t count) {
    memcpy(head + at, bytes, count);
    return at + count;
}

/* A compact length of always four bytes, so that heads have a known size. */
static size_t put_length(unsigned char *head, size_t at, size_t count) {
    size_t value = count + 1;
    for (int n = 0; n < 3; n++, value >>= 7)
        head[at++] = (unsigned char)((value & 0x7f) | 0x80);
    head[at++] = (unsigned char)value;
    return at;
}

/* Records of zeros, which are not parsed, end each large message; behind them are the empty tagged fields of three
 * structures, zeros too. */
static size_t put_records(unsigned char *head, size_t at, size_t wanted, size_t *frame_bytes) {
    size_t head_bytes = at + 4, count = wanted > head_bytes + 3 ? wanted - head_bytes - 3 : 0;
    *frame_bytes = head_bytes + count + 3;
    put_length(head, at, count);
    put32(head, (uint32_t)*frame_bytes - 4);
    return head_bytes;
}

static void build(size_t wanted) {
    /* length, api_key, api_version, correlation_id, client_id, no tagged fields */
    unsigned char start[] = {0, 0, 0, 0, 0, (unsigned char)key, 0, key ? 12 : 11, 0, 0, 0, 0, 0, 5, 'b', 'e', 'n', 'c', 'h', 0};
    /* no transactional_id, acks -1, timeout_ms; one topic "t", one partition, index */
    unsigned char acks[] = {0, 0xff, 0xff, 0, 0, 0x75, 0x30, 2, 2, 't', 2, 0, 0, 0, 0};
    /* replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch; no topics, forgotten
     * topics and rack; no tagged fields */
    unsigned char fetch[29] = {[25] = 1, [26] = 1, [27] = 1};
    memset(request_head, 0, sizeof request_head);
    size_t at = put(request_head, 0, start, sizeof start);
    if (key) {
        request_head_bytes = request_bytes = put(request_head, at, fetch, sizeof fetch);
        put32(request_head, (uint32_t)request_bytes - 4);
    } else {
        request_head_bytes = put_records(request_head, put(request_head, at, acks, sizeof acks), wanted, &request_bytes);
    }
    memset(response_head, 0, sizeof response_head);
    if (key) {
        /* length, correlation_id, no tagged fields, throttle_time_ms, error_code, session_id; one topic "t", one
         * partition: index, error_code, high_watermark, last_stable_offset, log_start_offset, no aborted transactions,
         * preferred_read_replica */
        memcpy(response_head + 19, "\x02\x02t\x02", 4);
        response_head_bytes = put_records(response_head, 23 + 6 + 24 + 1 + 4, response_bytes, &response_bytes);
    } else {
        /* length, correlation_id, no tagged fields; one topic "t", one partition: index, error_code, base_offset,
         * log_append_time_ms, log_start_offset, no record_errors, no error_message, tagged fields of two structures;
         * throttle_time_ms, no tagged fields */
        memcpy(response_head + 9, "\x02\x02t\x02", 4);
        response_head[13 + 30] = 1;
        response_head_bytes = response_bytes = 13 + 30 + 1 + 1 + 1 + 1 + 4 + 1;
        put32(response_head, (uint32_t)response_bytes - 4);
    }
}

static long side_write(struct side *s, const void *data, size_t count) {
#ifdef TLS
    if (s->ssl) {
        int n = SSL_write(s->ssl, data, (int)count);
        if (n > 0)
            return n;
        int error = SSL_get_error(s->ssl, n);
        if (error != SSL_ERROR_WANT_WRITE && error != SSL_ERROR_WANT_READ)
            fail("SSL_write");
        return 0;
    }
#endif
    long n = send(s->fd, data, count, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EPIPE && errno != ECONNRESET)
        fail("send");
    return n < 0 ? 0 : n;
}

static void watch(struct side *s, int writable) {
    if (s->writable == writable)
        return;
    s->writable = writable;
    struct epoll_event event = {EPOLLIN | (writable ? EPOLLOUT : 0), {.ptr = s}};
    epoll_ctl(poller, EPOLL_CTL_MOD, s->fd, &event);
}

/* Sends what is queued: each frame on its own, as Kafka's clients and brokers do, unless the peer does not keep up. */
static void flush(struct side *s) {
    while (s->queued) {
        size_t filled = 0, skipped = s->sent;
        for (int n = 0; n < s->queued && filled < CHUNK; n++) {
            unsigned char head[128];
            memcpy(head, s->head, s->head_bytes);
            uint32_t id = s->ids[(s->first_id + (uint32_t)n) % 1024];
            put32(head + (s->is_client ? 8 : 4), id);
            size_t from_head = skipped < s->head_bytes ? s->head_bytes - skipped : 0;
            if (from_head > CHUNK - filled)
                from_head = CHUNK - filled;
            memcpy(chunk + filled, head + skipped, from_head);
            size_t rest = s->frame_bytes - skipped - from_head;
            if (rest > CHUNK - filled - from_head)
                rest = CHUNK - filled - from_head;
            memset(chunk + filled + from_head, 0, rest);
            filled += from_head + rest;
            skipped = 0;
        }
        long n = side_write(s, chunk, filled);
        if (n <= 0)
            break;
        s->sent += (size_t)n;
        while (s->queued && s->sent >= s->frame_bytes) {
            s->sent -= s->frame_bytes;
            s->queued--;
            s->first_id++;
        }
        if ((size_t)n < filled)
            break;
    }
    watch(s, s->queued > 0);
}

static void ask(struct side *s) {
    s->began_ns[s->last_began++ % MAX_IN_FLIGHT] = now_ns();
    s->ids[(s->first_id + (uint32_t)s->queued) % 1024] = s->last_id++;
    s->queued++;
    waiting++;
}

/* A complete frame has come. */
static void complete(struct side *s) {
    if (!s->is_client) {
        uint32_t id;
        memcpy(&id, s->start + 8, 4);
        s->ids[(s->first_id + (uint32_t)s->queued) % 1024] = ntohl(id);
        s->queued++;
        flush(s);
        return;
    }
    uint64_t took_ns = now_ns() - s->began_ns[s->first_began++ % MAX_IN_FLIGHT];
    waiting--;
    answered++;
    if (sampled < MAX_SAMPLES)
        samples[sampled++] = (uint32_t)(took_ns / 1000);
    if (running) {
        ask(s);
        flush(s);
    }
}

static void take(struct side *s, const unsigned char *data, size_t count) {
    while (count) {
        size_t wanted = s->is_client ? 4 : 12, piece;
        if (s->got < wanted) {
            piece = count < wanted - s->got ? count : wanted - s->got;
            memcpy(s->start + s->got, data, piece);
            s->got += piece, data += piece, count -= piece;
            if (s->got < wanted)
                return;
            uint32_t length;
            memcpy(&length, s->start, 4);
            s->length = 4 + ntohl(length);
        }
        piece = s->length - s->got < count ? s->length - s->got : count;
        s->got += piece, data += piece, count -= piece;
        if (s->got == s->length) {
            s->got = 0;
            complete(s);
        }
    }
}

static void drop(struct side *s) {
    if (s->is_client) {
        fprintf(stderr, "framegen: the proxy closed a connection\n");
        exit(1);
    }
    close(s->fd);
    free(s);
}

static void readable(struct side *s) {
    for (int turn = 0; turn < 4; turn++) {
        long n;
#ifdef TLS
        if (s->ssl) {
            n = SSL_read(s->ssl, received, CHUNK);
            if (n <= 0) {
                int error = SSL_get_error(s->ssl, (int)n);
                if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
                    break;
                drop(s);
                return;
            }
            take(s, received, (size_t)n);
            turn = 0;
            continue;
        }
#endif
        n = recv(s->fd, received, CHUNK, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            drop(s);
            return;
        }
        if (n < 0)
            break;
        take(s, received, (size_t)n);
        if (n < CHUNK)
            break;
    }
}

static struct side *new_side(int fd, int is_client) {
    struct side *s = calloc(1, sizeof *s);
    int one = 1;
    s->fd = fd;
    s->is_client = is_client;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    s->head = is_client ? request_head : response_head;
    s->head_bytes = is_client ? request_head_bytes : response_head_bytes;
    s->frame_bytes = is_client ? request_bytes : response_bytes;
    return s;
}

static void add(struct side *s) {
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {EPOLLIN, {.ptr = s}};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, s->fd, &event))
        fail("epoll_ctl");
}

static void accept_all(void) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
        add(new_side(fd, 0));
}

static void turn(int timeout_ms) {
    struct epoll_event events[256];
    int count = epoll_wait(poller, events, 256, timeout_ms);
    for (int n = 0; n < count; n++) {
        struct side *s = events[n].data.ptr;
        if (!s)
            accept_all();
        else if (events[n].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            readable(s);
        else
            flush(s);
    }
}

static void open_clients(int port, int with_tls) {
    clients = calloc((size_t)connections, sizeof *clients);
    for (int n = 0; n < connections; n++) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to))
            fail("connect");
        struct side *s = clients[n] = new_side(fd, 1);
        if (with_tls) {
#ifdef TLS
            SSL *ssl = SSL_new(tls);
            SSL_set_fd(ssl, fd);
            if (SSL_connect(ssl) != 1)
                fail("SSL_connect");
            s->ssl = ssl;
#else
            fail("built without TLS");
#endif
        }
        add(s);
        turn(0);
    }
}

static void close_clients(void) {
    for (int n = 0; n < connections; n++) {
#ifdef TLS
        if (clients[n]->ssl)
            SSL_free(clients[n]->ssl);
#endif
        close(clients[n]->fd);
        free(clients[n]);
    }
    free(clients);
    connections = 0;
    for (uint64_t until = now_ns() + 300000000u; now_ns() < until;)
        turn(50);
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void run(double seconds) {
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9), began = now_ns();
    sampled = 0, answered = 0, running = 1;
    for (int n = 0; n < connections; n++) {
        for (int k = 0; k < in_flight; k++) {
            ask(clients[n]);
            flush(clients[n]);
        }
    }
    while (now_ns() < until)
        turn(10);
    running = 0;
    for (uint64_t last = now_ns() + 20000000000u; waiting;) {
        turn(10);
        if (now_ns() > last)
            fail("responses are missing");
    }
    double took = (double)(now_ns() - began) / 1e9;
    qsort(samples, sampled, sizeof *samples, compare);
    uint32_t p50 = sampled ? samples[sampled / 2] : 0, p99 = sampled ? samples[sampled * 99 / 100] : 0;
    printf("{\"seconds\": %.6f, \"frames\": %llu, \"p50_us\": %u, \"p99_us\": %u, \"max_us\": %u}\n", took,
           (unsigned long long)answered, p50, p99, sampled ? samples[sampled - 1] : 0);
}

int main(void) {
    char line[256];
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    samples = malloc(MAX_SAMPLES * sizeof *samples);
    setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef TLS
    tls = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
#endif
    poller = epoll_create1(0);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 1024) ||
        getsockname(listener, (struct sockaddr *)&at, &size))
        fail("listen");
    struct epoll_event event = {EPOLLIN, {.ptr = NULL}};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    printf("%d\n", ntohs(at.sin_port));
    while (fgets(line, sizeof line, stdin)) {
        int port, with_tls;
        size_t wanted;
        double seconds;
        if (sscanf(line, "open %d %d %d %d %d %zu %zu", &port, &with_tls, &key, &connections, &in_flight, &wanted,
                   &response_bytes) == 7) {
            build(wanted);
            open_clients(port, with_tls);
            printf("ready\n");
        } else if (sscanf(line, "run %lf", &seconds) == 1) {
            run(seconds);
        } else {
            close_clients();
            printf("closed\n");
        }
    }
    return 0;
}
