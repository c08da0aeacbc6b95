/* Client instances that keep KIP-714's rules: a GetTelemetrySubscriptions each, then a push at the interval it grants.
 *
 *   loadgen PORT INSTANCES CONNECTIONS RAMP_MS COMPRESSION PAYLOAD...
 *
 * One thread, epoll. Instance i has the same id in each run, uses connection i % CONNECTIONS and has at most one request
 * in flight. Its first push comes after 0.5 to 1.5 intervals, each other one interval after the answer to the push
 * before it, as the Java client does it. UNKNOWN_SUBSCRIPTION_ID asks for the subscription again; any other error waits an interval.
 * The n-th push of an instance carries payload n % count.
 *
 * "ready" when every instance has its subscription. A line `SECONDS` on standard input measures for that long and
 * prints one JSON object; the end of the input ends the program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SLOTS (1u << 20) /* of the timing wheel, 1 ms each: intervals of up to 17 minutes */
#define NONE UINT32_MAX
#define IN_BYTES 65536
#define PER_ADDRESS 20000 /* ports that one source address has to spare */
#define BUCKETS 4096      /* of latencies: 1/16 of a power of two wide */
#define API_VERSIONS_ID 0x7fffffff

enum { UNKNOWN_SUBSCRIPTION_ID = 117, GET = 71, PUSH = 72, API_VERSIONS = 18 };

struct instance {
    uint8_t id[16];
    uint32_t subscription, interval_ms, next, pushes;
    uint64_t sent_us; /* 0: nothing in flight */
};

struct connection {
    int fd;
    uint8_t *out; /* what the socket did not take yet */
    size_t out_from, out_to, out_size;
    uint8_t *in; /* the beginning of a response */
    size_t in_bytes;
};

struct payload {
    uint8_t *bytes;
    size_t size;
};

static struct instance *instances;
static struct connection *connections;
static struct payload *payloads;
static uint32_t n_instances, n_connections, n_payloads, subscribed, *slots;
static int poll_fd, compression;
static uint64_t begun_us, wheel_ms, acked, refused, sent, late_ms, in_flight, latencies[BUCKETS], slowest_us, gets;
static uint8_t scratch[IN_BYTES];

static void die(const char *what) {
    fprintf(stderr, "loadgen: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000 - begun_us;
}

static uint32_t drawn(uint32_t below) {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? (uint32_t)(state % below) : 0;
}

static uint8_t *put16(uint8_t *to, uint32_t value) { return *to++ = (uint8_t)(value >> 8), *to++ = (uint8_t)value, to; }
static uint8_t *put32(uint8_t *to, uint32_t value) { return put16(put16(to, value >> 16), value & 0xffff); }
static uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* --- the timing wheel: a list of instances for each millisecond */

static void schedule(uint32_t i, uint64_t due_ms) {
    if (due_ms <= wheel_ms) due_ms = wheel_ms + 1;
    if (due_ms - wheel_ms >= SLOTS) due_ms = wheel_ms + SLOTS - 1;
    uint32_t *slot = &slots[due_ms % SLOTS];
    instances[i].next = *slot, *slot = i;
}

/* --- sending */

static void flush(struct connection *c, uint32_t number) {
    while (c->out_from < c->out_to) {
        ssize_t n = send(c->fd, c->out + c->out_from, c->out_to - c->out_from, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) die("send");
        c->out_from += (size_t)n;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    if (c->out_from < c->out_to) event.events |= EPOLLOUT;
    else free(c->out), c->out = NULL, c->out_from = c->out_to = c->out_size = 0;
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static void transmit(uint32_t number, const uint8_t *frame, size_t size) {
    struct connection *c = &connections[number];
    ssize_t n = 0;
    if (!c->out && (n = send(c->fd, frame, size, MSG_NOSIGNAL)) == (ssize_t)size) return;
    if (n < 0 && errno != EAGAIN) die("send");
    if (n < 0) n = 0;
    if (c->out_to + size > c->out_size) {
        c->out_size = 2 * (c->out_to + size);
        if (!(c->out = realloc(c->out, c->out_size))) die("memory");
    }
    memcpy(c->out + c->out_to, frame + n, size - (size_t)n);
    c->out_to += size - (size_t)n;
    flush(c, number);
}

/* A frame's head, with the length still to be set; the correlation id names the instance. */
static uint8_t *head(uint8_t *frame, int api_key, int version, uint32_t correlation_id) {
    uint8_t *at = put32(put16(put16(frame + 4, (uint32_t)api_key), (uint32_t)version), correlation_id);
    int length = sprintf((char *)at + 2, "load-%07u", correlation_id & 0xffffff);
    at = put16(at, (uint32_t)length) + length;
    return *at++ = 0, at;
}

static void finish(uint32_t number, uint8_t *frame, uint8_t *end) {
    *end++ = 0;
    put32(frame, (uint32_t)(end - frame - 4));
    transmit(number, frame, (size_t)(end - frame));
}

static void request(uint32_t i) {
    struct instance *one = &instances[i];
    uint8_t *frame = scratch, *at;
    one->sent_us = now_us();
    in_flight++;
    if (!one->subscription) {
        at = head(frame, GET, 0, i);
        memcpy(at, one->id, 16);
        gets++;
        finish(i % n_connections, frame, at + 16);
        return;
    }
    const struct payload *carried = &payloads[one->pushes++ % n_payloads];
    at = head(frame, PUSH, 0, i);
    memcpy(at, one->id, 16);
    at = put32(at + 16, one->subscription);
    *at++ = 0, *at++ = (uint8_t)compression;
    size_t length = carried->size + 1;
    for (; length > 0x7f; length >>= 7) *at++ = (uint8_t)(length | 0x80);
    *at++ = (uint8_t)length;
    memcpy(at, carried->bytes, carried->size);
    sent++;
    finish(i % n_connections, frame, at + carried->size);
}

/* --- receiving */

static uint32_t bucket(uint64_t us) {
    if (us < 16) return (uint32_t)us;
    uint32_t power = 63 - (uint32_t)__builtin_clzll(us);
    return (power - 3) * 16 + (uint32_t)(us >> (power - 4) & 15);
}

static void answered(const uint8_t *frame) {
    uint32_t i = get32(frame);
    if (i == API_VERSIONS_ID) return;
    struct instance *one = &instances[i];
    uint64_t now = now_us(), took_us = now - one->sent_us, now_ms = now / 1000;
    int code = frame[9] << 8 | frame[10];
    one->sent_us = 0;
    in_flight--;
    if (!one->subscription) {
        if (code) {
            schedule(i, now_ms + 1000);
            return;
        }
        memcpy(one->id, frame + 11, 16);
        one->subscription = get32(frame + 27);
        one->interval_ms = get32(frame + 31 + frame[31]); /* behind the accepted compression types */
        if (!one->pushes) subscribed++;
        schedule(i, now_ms + one->interval_ms / 2 + drawn(one->interval_ms));
        return;
    }
    latencies[bucket(took_us)]++;
    if (took_us > slowest_us) slowest_us = took_us;
    if (code) refused++;
    else acked++;
    if (code == UNKNOWN_SUBSCRIPTION_ID) one->subscription = 0;
    schedule(i, code == UNKNOWN_SUBSCRIPTION_ID ? now_ms + 1 : now_ms + one->interval_ms + 1);
}

static void receive(struct connection *c) {
    static uint8_t data[2 * IN_BYTES];
    memcpy(data, c->in, c->in_bytes);
    ssize_t n = recv(c->fd, data + c->in_bytes, IN_BYTES, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die(n ? "recv" : "the gateway closed a connection");
    size_t end = c->in_bytes + (size_t)n, at = 0;
    while (end - at >= 4 && end - at >= 4 + (size_t)get32(data + at)) {
        answered(data + at + 4);
        at += 4 + get32(data + at);
    }
    free(c->in);
    c->in = NULL;
    if ((c->in_bytes = end - at)) {
        if (!(c->in = malloc(c->in_bytes))) die("memory");
        memcpy(c->in, data + at, c->in_bytes);
    }
}

static void turn(void) {
    struct epoll_event events[256];
    int n = epoll_wait(poll_fd, events, 256, 1);
    for (int e = 0; e < n; e++) {
        if (events[e].events & EPOLLOUT) flush(&connections[events[e].data.u32], events[e].data.u32);
        if (events[e].events & ~(uint32_t)EPOLLOUT) receive(&connections[events[e].data.u32]);
    }
    uint64_t ms = now_us() / 1000;
    if (ms - wheel_ms > late_ms) late_ms = ms - wheel_ms;
    while (wheel_ms < ms) {
        uint32_t i = slots[++wheel_ms % SLOTS];
        slots[wheel_ms % SLOTS] = NONE;
        for (uint32_t next; i != NONE; i = next) next = instances[i].next, request(i);
    }
}

/* --- start and output */

static void open_connections(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}, from = {.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (uint32_t number = 0; number < n_connections; number++) {
        struct connection *c = &connections[number];
        int yes = 1;
        from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + number / PER_ADDRESS);
        if ((c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0) die("socket");
        if (bind(c->fd, (struct sockaddr *)&from, sizeof from) < 0) die("bind");
        if (connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0) die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event) < 0) die("epoll_ctl");
        static const char software[] = "\x08loadgen\x04" "1.0";
        uint8_t *at = head(scratch, API_VERSIONS, 3, API_VERSIONS_ID);
        memcpy(at, software, sizeof software - 1);
        finish(number, scratch, at + sizeof software - 1);
    }
}

static double quantile_ms(double share) {
    uint64_t all = 0, seen = 0;
    for (int b = 0; b < BUCKETS; b++) all += latencies[b];
    for (uint32_t b = 0; b < BUCKETS; b++)
        if ((seen += latencies[b]) && (double)seen >= share * (double)all) {
            if (b < 16) return b / 1000.0;
            return (double)((uint64_t)(16 + b % 16 + 1) << (b / 16 - 1)) / 1000.0;
        }
    return 0;
}

static void measure(double seconds) {
    memset(latencies, 0, sizeof latencies);
    acked = refused = sent = late_ms = slowest_us = gets = 0;
    uint64_t from = now_us();
    while ((double)(now_us() - from) < seconds * 1e6) turn();
    printf("{\"seconds\": %.3f, \"sent\": %lu, \"acknowledged\": %lu, \"refused\": %lu, \"gets\": %lu, \"in_flight\": %lu,"
           " \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, \"late_ms\": %lu}\n",
           (double)(now_us() - from) / 1e6, sent, acked, refused, gets, in_flight, quantile_ms(0.5), quantile_ms(0.99),
           (double)slowest_us / 1000.0, late_ms);
    fflush(stdout);
}

static void read_payload(struct payload *into, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || !(into->bytes = malloc(IN_BYTES))) die(path);
    into->size = fread(into->bytes, 1, IN_BYTES - 128, file);
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc < 7) return fprintf(stderr, "usage: loadgen PORT INSTANCES CONNECTIONS RAMP_MS COMPRESSION PAYLOAD...\n"), 2;
    n_instances = (uint32_t)atol(argv[2]), n_connections = (uint32_t)atol(argv[3]), compression = atoi(argv[5]);
    n_payloads = (uint32_t)(argc - 6);
    instances = calloc(n_instances, sizeof *instances), connections = calloc(n_connections, sizeof *connections);
    payloads = calloc(n_payloads, sizeof *payloads), slots = malloc(SLOTS * sizeof *slots);
    if (!instances || !connections || !payloads || !slots || (poll_fd = epoll_create1(0)) < 0) die("memory");
    for (uint32_t p = 0; p < n_payloads; p++) read_payload(&payloads[p], argv[6 + p]);
    memset(slots, 0xff, SLOTS * sizeof *slots);
    begun_us = now_us();
    open_connections(atoi(argv[1]));
    wheel_ms = now_us() / 1000;
    for (uint32_t i = 0; i < n_instances; i++) {
        memcpy(instances[i].id, "load\0\0\x40\0\x80\0\0\0", 12); /* a version 4 UUID that ends with the number */
        put32(instances[i].id + 12, i + 1);
        schedule(i, wheel_ms + 1 + drawn((uint32_t)atol(argv[4])));
    }
    while (subscribed < n_instances) turn();
    printf("ready\n");
    fflush(stdout);
    for (char line[64]; ; ) { /* pushes go on while no measure runs */
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (poll(&input, 1, 0) > 0) {
            if (!fgets(line, sizeof line, stdin)) return 0;
            measure(atof(line));
        }
        turn();
    }
}
