/* An MQTT load generator: one thread, one epoll, large reads, batched writes.
 *
 *   load throughput --port 1883 --qos 1 --window 1000     as fast as the broker delivers (closed loop)
 *   load paced      --port 1883 --rate 1000               a fixed rate, to measure latency
 *   load fill       --port 1883 --qos 1 --messages 1000   publish so many messages, without subscribers
 *   load catch-up   --port 1883 --qos 1 --window 1000     a session leaves, misses --messages, comes back for them
 *   load connect    --port 1883 --connections 9000        time to connect all; holds them until stdin closes
 *   load ceiling    --subscribers 100                     the generator against a byte-forwarder, no broker
 *
 * Every payload begins with a stamp of 16 bytes: send time (CLOCK_MONOTONIC ns, 8), source (4), sequence number (4).
 * The rest is random, from a hash of source and sequence number, so that no compression and no cache can exploit it.
 * With --json the payload is a JSON object of 58 to 172 bytes: the stamp in hexadecimal, and random readings.
 * A source is one topic of one publisher. So a subscriber knows the next message of each source to its last byte: lost,
 * duplicated, reordered, misrouted and damaged messages are all counted.
 *
 * Closed loop: at most --window messages are published and not yet received by all their subscribers, so no broker is
 * driven into dropping messages. For QoS 1 and 2 a publisher also has at most --window messages unacknowledged (or the
 * broker's Receive Maximum, if that is less). With --subscribers 0 only that limit holds, and the latency is that of the
 * acknowledgement; with --window 1 as well, each publisher sends its next message when the last is acknowledged.
 *
 * The result is one JSON line on standard output. Exit status 1: something failed, said on standard error.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define STAMP 16                 /* bytes of time, source and sequence number in front of every payload */
#define JSON_START "{\"id\":\""   /* followed by the stamp in hexadecimal, */
#define JSON_VALUES "\",\"values\":["  /* this, readings of the form 12.34, and ]} */
#define READINGS 20              /* a JSON object has between one and so many */
#define PACKET_SPACE 512         /* more than a PUBLISH needs besides its payload */
#define READ_SIZE (256 * 1024)
#define WRITE_SIZE (64 * 1024)   /* a pipelined publisher puts at most about this much into one write */
#define WRITES_PER_TURN 256      /* with one packet per write: how many, before incoming data has its turn */
#define NAP 50000                /* ns; see nap() */
#define STALL (3 * SECOND)       /* nothing arrived for so long: what is outstanding will never arrive */
#define SETUP_LIMIT (60 * SECOND)

typedef struct {                 /* bytes waiting to be written */
    uint8_t *bytes;
    size_t start, end, capacity;
} Outbox;

typedef enum { CLOSED, CONNECTING, AWAIT_CONNACK, AWAIT_SUBACK, READY } State;

typedef struct {
    int fd;
    uint32_t index;              /* the number of this publisher, or of this subscriber */
    int is_subscriber;
    State state;
    int wants_write;             /* EPOLLOUT is armed */
    uint8_t *partial;            /* the beginning of a packet whose end has not come yet */
    size_t partial_size, partial_capacity;
    Outbox out;
    /* publisher only */
    uint32_t *sequences, turn;   /* the next sequence number of each of its topics; the topic of the next message */
    uint32_t unacknowledged;
    uint16_t packet_id;
    uint8_t *pending_ids;        /* a bit for each packet id in use, to notice an acknowledgement of nothing */
    uint64_t *sent_at;           /* by packet id; only where there are no subscribers */
    void *tls;
} Connection;

typedef struct { uint64_t flow; uint32_t first, last; } Gap;   /* numbers skipped: lost, unless they come late */

static struct {
    const char *mode, *host;
    int port, mqtt, properties, json, retain, tls, qos, one_packet_per_write, one_to_one;
    uint32_t per_publisher, publishers, subscribers, topics, window, batch, connections, in_progress, payload, messages;
    double seconds, warmup, rate;
    const char *pids, *user;
} option = {.host = "127.0.0.1", .mqtt = 3, .per_publisher = 1, .publishers = 1, .subscribers = 1, .topics = 1, .window = 4096,
            .batch = 1, .connections = 1000, .in_progress = 64, .payload = 64, .seconds = 2, .warmup = 0.5,
            .rate = 1000, .messages = 1000000, .pids = ""};

static int epoll;
static Connection *publishers, *subscribers, *turn_of;
static uint32_t *receivers_of_topic;
static uint32_t *next_sequence;  /* [subscriber * sources + source]; source: publisher * per_publisher + its topic */
static Gap *gaps;
static size_t gap_count, gap_capacity;
static uint32_t receive_maximum = 65535;
static uint8_t input[READ_SIZE * 2];

static uint64_t sent, expected, received, acknowledged;     /* over the whole run; expected: deliveries due */
static uint64_t skipped, duplicated, out_of_order, misrouted, damaged, protocol_errors;
static uint64_t measured_sent, measured_received, measured_acknowledged, latency_max, late_max;
static int measuring;
static int replies;              /* a publisher sends its next message at once when the last is acknowledged */
static int is_counted;           /* no more than --messages are published */
static int keeps_session, returning;     /* catch-up: subscribers have lasting sessions; and now come back to them */
static uint64_t histogram[64 * 64];
static uint32_t ready_count;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "load: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fail("out of memory");
    return memory;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* ---- latency: a histogram of 64 buckets per power of two, so within 1.6 % ---- */

static inline unsigned bucket_of(uint64_t ns) {
    if (ns < 64) return (unsigned)ns;
    unsigned shift = 58u - (unsigned)__builtin_clzll(ns);    /* leaves 6 bits: 32..63 */
    return (shift + 1) * 32 + (unsigned)(ns >> shift);
}

static double bucket_middle_us(unsigned bucket) {
    if (bucket < 64) return bucket / 1e3;
    unsigned shift = bucket / 32 - 2;
    uint64_t low = (uint64_t)(bucket - (shift + 1) * 32) << shift;
    return ((double)low + (double)(1ull << shift) / 2) / 1e3;
}

static inline void record(uint64_t latency) {
    histogram[bucket_of(latency)]++;
    if (latency > latency_max) latency_max = latency;
}

static double percentile_us(double fraction) {
    uint64_t total = 0, seen = 0;
    for (unsigned i = 0; i < 64 * 64; i++) total += histogram[i];
    if (!total) return 0;
    for (unsigned i = 0; i < 64 * 64; i++) {
        seen += histogram[i];
        if ((double)seen >= fraction * (double)total) return bucket_middle_us(i);
    }
    return 0;
}

/* ---- building packets ---- */

static uint8_t *put16(uint8_t *p, unsigned value) { *p++ = (uint8_t)(value >> 8); *p++ = (uint8_t)value; return p; }

static uint8_t *put_text(uint8_t *p, const char *text) {
    size_t n = strlen(text);
    p = put16(p, (unsigned)n);
    memcpy(p, text, n);
    return p + n;
}

static uint8_t *put_length(uint8_t *p, size_t length) {
    do { *p = length & 127; length >>= 7; if (length) *p |= 128; p++; } while (length);
    return p;
}

static void topic_name(char *text, uint32_t topic) { sprintf(text, "bench/%06u", topic); }

static size_t build(uint8_t *to, uint8_t type, const uint8_t *body, size_t size) {
    uint8_t *p = to;
    *p++ = type;
    p = put_length(p, size);
    memcpy(p, body, size);
    return (size_t)(p - to) + size;
}

static size_t build_connect(uint8_t *to, const Connection *c) {
    uint8_t body[128], *p = body;
    char client_id[32];
    sprintf(client_id, "load-%s-%u", c->is_subscriber ? "s" : "p", c->index);
    p = put_text(p, "MQTT");
    *p++ = option.mqtt == 5 ? 5 : 4;
    uint8_t clean = keeps_session && c->is_subscriber ? 0 : 2;   /* clean session / clean start */
    *p++ = clean | (option.user ? 0xc0 : 0);
    p = put16(p, 600);                          /* keep alive: longer than any run, so no PINGREQ is needed */
    if (option.mqtt == 5) *p++ = 0;             /* no properties */
    p = put_text(p, client_id);
    if (option.user) {           /* the password is the same as the name */
        p = put_text(p, option.user);
        p = put_text(p, option.user);
    }
    return build(to, 0x10, body, (size_t)(p - body));
}

static size_t build_subscribe(uint8_t *to, const Connection *c) {
    uint8_t body[128], *p = put16(body, 1);
    char filter[32] = "bench/+";
    if (option.one_to_one || option.topics == 1) topic_name(filter, c->index % option.topics);
    if (option.mqtt == 5) *p++ = 0;
    p = put_text(p, filter);
    *p++ = (uint8_t)option.qos;
    return build(to, 0x82, body, (size_t)(p - body));
}

/* ---- payloads ---- */

static uint16_t hexadecimal[256];
static uint8_t nibble[256];
static uint64_t reading_text[10000];     /* "12.34," */

static void prepare_tables(void) {
    for (unsigned i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "%02x", i);
        memcpy(&hexadecimal[i], text, 2);
    }
    for (unsigned i = 0; i < 16; i++) nibble[(uint8_t)"0123456789abcdef"[i]] = (uint8_t)i;
    for (unsigned i = 0; i < 10000; i++) {
        char text[16] = {0};
        snprintf(text, sizeof text, "%02u.%02u,", i / 100 % 100, i % 100);
        memcpy(&reading_text[i], text, 8);
    }
}

static inline uint64_t random_word(uint64_t seed, uint64_t number) {     /* splitmix64 */
    uint64_t x = seed + (number + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline uint64_t seed_of(uint32_t source, uint32_t sequence) {
    return ((uint64_t)source << 32 | sequence) * 0xd6e8feb86659fd93ull;
}

static inline uint32_t payload_size(uint32_t source, uint32_t sequence) {
    if (!option.json) return option.payload;
    uint32_t readings = 1 + (uint32_t)(random_word(seed_of(source, sequence), 0) >> 32) % READINGS;
    return (uint32_t)(strlen(JSON_START) + 2 * STAMP + strlen(JSON_VALUES)) + 6 * readings + 1;
}

/* Write what follows the stamp; up to 8 bytes behind it may be overwritten. */
static inline void put_rest(uint8_t *p, uint32_t size, uint32_t source, uint32_t sequence) {
    uint64_t seed = seed_of(source, sequence), word = 0;
    if (!option.json) {
        for (uint32_t at = 0; at < size; at += 8) {
            word = random_word(seed, at);
            memcpy(p + at, &word, 8);
        }
        return;
    }
    memcpy(p, JSON_VALUES, strlen(JSON_VALUES));
    uint8_t *end = p + size;
    p += strlen(JSON_VALUES);
    for (uint32_t number = 0; p < end - 1; number++, p += 6) {
        word = number % 4 ? word >> 16 : random_word(seed, 1 + number);
        memcpy(p, &reading_text[(word & 0xffff) * 10000 >> 16], 8);
    }
    p[-1] = ']', p[0] = '}';
}

static inline uint8_t *put_payload(uint8_t *p, uint64_t time, uint32_t source, uint32_t sequence) {
    uint8_t stamp[STAMP], *end = p + payload_size(source, sequence);
    memcpy(stamp, &time, 8);
    memcpy(stamp + 8, &source, 4);
    memcpy(stamp + 12, &sequence, 4);
    if (option.json) {
        memcpy(p, JSON_START, strlen(JSON_START));
        p += strlen(JSON_START);
        for (unsigned i = 0; i < STAMP; i++, p += 2) memcpy(p, &hexadecimal[stamp[i]], 2);
    } else {
        memcpy(p, stamp, STAMP);
        p += STAMP;
    }
    put_rest(p, (uint32_t)(end - p), source, sequence);
    return end;
}

/* Read the stamp of a payload. Return whether all bytes are as they were sent. */
static inline int read_payload(const uint8_t *p, size_t size, uint64_t *time, uint32_t *source, uint32_t *sequence) {
    static uint8_t rest[READ_SIZE + 8];
    uint8_t stamp[STAMP];
    const uint8_t *end = p + size;
    if (option.json) {
        if (size < strlen(JSON_START) + 2 * STAMP || memcmp(p, JSON_START, strlen(JSON_START))) return 0;
        p += strlen(JSON_START);
        for (unsigned i = 0; i < STAMP; i++, p += 2) stamp[i] = (uint8_t)(nibble[p[0]] << 4 | nibble[p[1]]);
    } else {
        if (size < STAMP) return 0;
        memcpy(stamp, p, STAMP);
        p += STAMP;
    }
    memcpy(time, stamp, 8);
    memcpy(source, stamp + 8, 4);
    memcpy(sequence, stamp + 12, 4);
    if (*source >= option.publishers * option.per_publisher || size != payload_size(*source, *sequence)) return 0;
    put_rest(rest, (uint32_t)(end - p), *source, *sequence);
    return !memcmp(p, rest, (size_t)(end - p));
}

static uint32_t topic_of(uint32_t source) {
    return (source / option.per_publisher + source % option.per_publisher) % option.topics;
}

/* The remaining length takes four bytes in a first step, and is then made as short as it should be. */
static size_t build_publish(uint8_t *to, uint32_t source, uint32_t sequence, unsigned packet_id, uint64_t time) {
    uint8_t *p = to + 5, *body = p;
    p = put16(p, 12);
    memcpy(p, "bench/", 6);
    p += 6;
    uint32_t topic = topic_of(source);
    for (int i = 5; i >= 0; i--, topic /= 10) p[i] = (uint8_t)('0' + topic % 10);
    p += 6;
    if (option.qos) p = put16(p, packet_id);
    if (option.properties) {     /* content type, and a user property of varying length */
        static const char type[] = "\x03\0\x10" "application/json\x26\0\x05trace\0";
        uint64_t word = random_word(seed_of(source, sequence), 1u << 20);
        unsigned length = 8 + (unsigned)(word >> 59);
        *p++ = (uint8_t)(sizeof type + length);
        memcpy(p, type, sizeof type - 1);
        p += sizeof type - 1;
        *p++ = (uint8_t)length;
        for (unsigned i = 0; i < length; i++) *p++ = (uint8_t)('a' + (word >> i % 16 * 4 & 15));
    } else if (option.mqtt == 5) *p++ = 0;
    p = put_payload(p, time, source, sequence);
    size_t size = (size_t)(p - body), header = size < 128 ? 2 : size < 16384 ? 3 : 4;
    to[0] = (uint8_t)(0x30 | option.qos << 1 | option.retain);
    put_length(to + 1, size);
    if (header < 5) memmove(to + header, body, size);
    return header + size;
}

/* ---- sockets ---- */

static void watch(Connection *c, int wants_write, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll, operation, c->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
    c->wants_write = wants_write;
}

static uint8_t *reserve(Outbox *out, size_t size) {
    if (out->start == out->end) out->start = out->end = 0;
    if (out->end + size > out->capacity) {
        out->capacity = (out->end + size) * 2;
        out->bytes = realloc(out->bytes, out->capacity);
        if (!out->bytes) fail("out of memory");
    }
    return out->bytes + out->end;
}

static const char *describe(const Connection *c);

/* ---- TLS, from the OpenSSL library at run time: so neither its headers nor its library are needed to compile this ---- */

static struct {
    void *context;
    void *(*new_tls)(void *);
    int (*set_fd)(void *, int), (*connect)(void *), (*read)(void *, void *, int), (*write)(void *, const void *, int);
    int (*get_error)(const void *, int);
} tls;

enum { TLS_WANTS_READ = 2, TLS_WANTS_WRITE = 3, TLS_SYSTEM = 5, TLS_CLOSED = 6 };

static void *tls_symbol(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) fail("OpenSSL has no %s", name);
    return symbol;
}

static void load_tls(void) {
    void *library = dlopen("libssl.so.3", RTLD_NOW);
    if (!library) fail("--tls: %s", dlerror());
    void *(*new_context)(void *) = tls_symbol(library, "SSL_CTX_new");
    void *(*method)(void) = tls_symbol(library, "TLS_client_method");
    long (*control)(void *, int, long, void *) = tls_symbol(library, "SSL_CTX_ctrl");
    tls.context = new_context(method());
    control(tls.context, 33, 1 | 2, NULL);       /* SSL_CTRL_MODE: partial writes, from a buffer that may move */
    tls.new_tls = tls_symbol(library, "SSL_new");
    tls.set_fd = tls_symbol(library, "SSL_set_fd");
    tls.connect = tls_symbol(library, "SSL_connect");
    tls.read = tls_symbol(library, "SSL_read");
    tls.write = tls_symbol(library, "SSL_write");
    tls.get_error = tls_symbol(library, "SSL_get_error");
}

/* Blocks until the handshake is done: there are few connections where this is used. */
static void tls_handshake(Connection *c) {
    int flags = fcntl(c->fd, F_GETFL);
    c->tls = tls.new_tls(tls.context);
    fcntl(c->fd, F_SETFL, flags & ~O_NONBLOCK);
    if (!tls.set_fd(c->tls, c->fd) || tls.connect(c->tls) != 1) fail("TLS handshake of %s failed", describe(c));
    fcntl(c->fd, F_SETFL, flags);
}

static ssize_t tls_result(Connection *c, int n) {
    int error = tls.get_error(c->tls, n);
    if (error == TLS_CLOSED) return 0;
    if (error == TLS_WANTS_READ || error == TLS_WANTS_WRITE) errno = EAGAIN;
    else if (error != TLS_SYSTEM || !errno) errno = EPROTO;
    return -1;
}

static ssize_t tls_write(Connection *c, const uint8_t *bytes, size_t size) {
    size_t done = 0;
    while (done < size) {
        int n = tls.write(c->tls, bytes + done, (int)(size - done));
        if (n <= 0) return done ? (ssize_t)done : tls_result(c, n);
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* Reads until nothing is left, for epoll does not tell of what OpenSSL has buffered. */
static ssize_t tls_read(Connection *c, uint8_t *to, size_t size) {
    size_t done = 0;
    while (done < size) {
        int n = tls.read(c->tls, to + done, (int)(size - done));
        if (n <= 0) return done ? (ssize_t)done : tls_result(c, n);
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static ssize_t receive(Connection *c, uint8_t *to, size_t size) {
    return c->tls ? tls_read(c, to, size) : read(c->fd, to, size);
}

static const char *describe(const Connection *c) {
    static char text[48];
    sprintf(text, "%s %u", c->is_subscriber ? "subscriber" : "publisher", c->index);
    return text;
}

static void flush(Connection *c) {
    Outbox *out = &c->out;
    if (out->start < out->end) {
        /* One packet per write is a segment each, as those of many devices are. Without MSG_EOR it is up to chance
         * (how large TCP's congestion window was when slow start ended) whether TCP puts packets together: the same
         * broker gets 230,000/s in one run and 700,000/s in the next. */
        int flags = option.one_packet_per_write ? MSG_EOR : 0;
        ssize_t n = c->tls ? tls_write(c, out->bytes + out->start, out->end - out->start)
                           : send(c->fd, out->bytes + out->start, out->end - out->start, flags);
        if (n > 0) out->start += (size_t)n;
        else if (n < 0 && errno != EAGAIN) fail("writing to %s: %s", describe(c), strerror(errno));
    }
    int wants_write = out->start < out->end;
    if (wants_write != c->wants_write) watch(c, wants_write, EPOLL_CTL_MOD);
}

static void open_connection(Connection *c) {
    int on = 1;
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)option.port)};
    inet_pton(AF_INET, option.host, &there.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("socket: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (c->index >= 5000) {      /* one source address has about 28,000 ports, some of them in TIME_WAIT */
        struct sockaddr_in here = {.sin_family = AF_INET};
        here.sin_addr.s_addr = htonl(INADDR_LOOPBACK + c->index / 5000);
        setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(c->fd, (struct sockaddr *)&here, sizeof here)) fail("bind: %s", strerror(errno));
    }
    if (connect(c->fd, (struct sockaddr *)&there, sizeof there) && errno != EINPROGRESS)
        fail("connect to %s:%d: %s", option.host, option.port, strerror(errno));
    c->state = CONNECTING;
    watch(c, 1, EPOLL_CTL_ADD);
}

/* ---- what a packet from the broker means ---- */

static void append_publish(Connection *c, uint64_t now);
static int may_publish(const Connection *c);

static void skip(uint64_t flow, uint32_t first, uint32_t last) {
    if (gap_count == gap_capacity) {
        gap_capacity = gap_capacity ? gap_capacity * 2 : 1024;
        gaps = realloc(gaps, gap_capacity * sizeof *gaps);
        if (!gaps) fail("out of memory");
    }
    gaps[gap_count++] = (Gap){flow, first, last};
    skipped += last - first + 1;
}

/* A number below the one awaited: either it was skipped before (it comes out of order), or it is a repetition. */
static void late_or_repeated(uint64_t flow, uint32_t sequence) {
    for (size_t i = gap_count; i-- > 0;) {
        Gap g = gaps[i];
        if (g.flow != flow || sequence < g.first || sequence > g.last) continue;
        gaps[i] = gaps[--gap_count];
        skipped -= g.last - g.first + 1;
        if (sequence > g.first) skip(flow, g.first, sequence - 1);
        if (sequence < g.last) skip(flow, sequence + 1, g.last);
        out_of_order++;
        received++;
        measured_received += (uint64_t)measuring;
        return;
    }
    duplicated++;
}

static inline void on_message(Connection *c, const uint8_t *payload, size_t size, uint64_t now) {
    uint64_t time;
    uint32_t source, sequence, sources = option.publishers * option.per_publisher;
    if (!read_payload(payload, size, &time, &source, &sequence)) { damaged++; return; }
    if (option.one_to_one && topic_of(source) != c->index % option.topics) { misrouted++; return; }
    uint64_t flow = (uint64_t)c->index * sources + source;
    uint32_t awaited = next_sequence[flow];
    if (__builtin_expect(sequence != awaited, 0)) {
        if (sequence < awaited) { late_or_repeated(flow, sequence); return; }
        skip(flow, awaited, sequence - 1);
    }
    next_sequence[flow] = sequence + 1;
    received++;
    if (measuring) {
        measured_received++;
        record(now - time);
    }
}

static void answer(Connection *c, uint8_t type, const uint8_t *packet_id) {
    uint8_t *p = reserve(&c->out, 4);
    p[0] = type, p[1] = 2, p[2] = packet_id[0], p[3] = packet_id[1];
    c->out.end += 4;
}

static void release(Connection *c, unsigned id, uint64_t now) {
    uint8_t bit = (uint8_t)(1 << (id & 7));
    if (!(c->pending_ids[id >> 3] & bit)) { protocol_errors++; return; }
    c->pending_ids[id >> 3] &= (uint8_t)~bit;
    c->unacknowledged--;
    acknowledged++;
    if (measuring) {
        measured_acknowledged++;
        if (c->sent_at) record(now - c->sent_at[id]);
    }
}

/* MQTT 5: an acknowledgement longer than its packet id carries a reason code; 0x80 and above is a refusal. */
static void check_reason(const uint8_t *body, size_t size) {
    if (size > 2 && body[2] >= 0x80) fail("the broker refused a message: reason code 0x%02x", body[2]);
}

static void on_connack(Connection *c, const uint8_t *body, size_t size) {
    if (size < 2 || body[1]) fail("CONNACK to %s refuses: code %u", describe(c), size < 2 ? 0 : body[1]);
    if (body[0] != (returning && c->is_subscriber))
        fail("CONNACK to %s tells of %s", describe(c), returning ? "no session" : "a session from before");
    if (option.mqtt == 5 && size > 3) {          /* only Receive Maximum (0x21) matters; lengths by identifier */
        size_t at = 3, end = 3 + body[2];        /* a CONNACK with over 127 bytes of properties is not expected */
        while (at < end && end <= size) {
            uint8_t id = body[at++];
            if (id == 0x21) receive_maximum = (uint32_t)(body[at] << 8 | body[at + 1]);
            switch (id) {
            case 0x11: case 0x27: at += 4; break;
            case 0x13: case 0x21: case 0x22: at += 2; break;
            case 0x24: case 0x25: case 0x28: case 0x29: case 0x2a: at += 1; break;
            case 0x26: at += 2u + (size_t)(body[at] << 8 | body[at + 1]); /* fall through */
            case 0x12: case 0x15: case 0x16: case 0x1a: case 0x1c: case 0x1f:
                at += 2u + (size_t)(body[at] << 8 | body[at + 1]); break;
            default: fail("CONNACK has an unknown property 0x%02x", id);
            }
        }
    }
    if (c->is_subscriber && !returning) {
        c->out.end += build_subscribe(reserve(&c->out, 256), c);
        c->state = AWAIT_SUBACK;
    } else {
        c->state = READY;
        ready_count++;
    }
}

static void on_packet(Connection *c, uint8_t type, const uint8_t *body, size_t size, uint64_t now) {
    const uint8_t *end = body + size, *p = body;
    switch (type >> 4) {
    case 2:
        if (c->state != AWAIT_CONNACK) fail("unexpected CONNACK");
        on_connack(c, body, size);
        break;
    case 9:
        if (c->state != AWAIT_SUBACK || end[-1] != option.qos) fail("SUBACK to %s grants %u", describe(c), end[-1]);
        c->state = READY;
        ready_count++;
        break;
    case 3: {
        unsigned qos = type >> 1 & 3;
        p += 2 + (p[0] << 8 | p[1]);
        const uint8_t *packet_id = p;
        if (qos) p += 2;
        if (option.mqtt == 5) {
            size_t length = 0;
            unsigned shift = 0;
            do { length |= (size_t)(*p & 127) << shift; shift += 7; } while (*p++ & 128);
            p += length;
        }
        if (p > end || (int)qos != option.qos) { damaged++; break; }
        on_message(c, p, (size_t)(end - p), now);
        if (qos) answer(c, qos == 1 ? 0x40 : 0x50, packet_id);
        break;
    }
    case 4:
    case 7:
        check_reason(body, size);
        release(c, (unsigned)(body[0] << 8 | body[1]), now);
        break;
    case 5:
        check_reason(body, size);
        answer(c, 0x62, body);
        break;
    case 6:
        answer(c, 0x70, body);
        break;
    case 14:
        fail("the broker disconnects %s: reason code 0x%02x", describe(c), size ? body[0] : 0);
        break;
    default:
        fail("unexpected packet 0x%02x from the broker to %s", type, describe(c));
    }
}

static void on_readable(Connection *c) {
    memcpy(input, c->partial, c->partial_size);
    ssize_t n = receive(c, input + c->partial_size, READ_SIZE);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) fail("the broker closed the connection of %s: %s", describe(c), n ? strerror(errno) : "end of file");
    uint64_t now = now_ns();
    const uint8_t *p = input, *end = input + c->partial_size + n;
    while (end - p >= 2) {
        size_t length = p[1] & 127;
        const uint8_t *body = p + 2;
        for (unsigned shift = 7; body[-1] & 128 && body < end; shift += 7) length |= (size_t)(*body++ & 127) << shift;
        if (body[-1] & 128 || (size_t)(end - body) < length) break;
        on_packet(c, *p, body, length, now);
        p = body + length;
    }
    c->partial_size = (size_t)(end - p);
    if (c->partial_size > READ_SIZE) fail("a packet larger than %d bytes came", READ_SIZE);
    if (c->partial_size > c->partial_capacity) {
        c->partial_capacity = c->partial_size * 2;
        c->partial = realloc(c->partial, c->partial_capacity);
        if (!c->partial) fail("out of memory");
    }
    memcpy(c->partial, p, c->partial_size);
    if (replies && !c->is_subscriber && c->state == READY && may_publish(c)) append_publish(c, now);
    flush(c);                    /* all the answers to what one read brought leave in one write */
}

static void on_event(Connection *c, uint32_t events) {
    if (c->state == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) fail("connect %s: %s", describe(c), strerror(error));
        if (option.tls) tls_handshake(c);
        c->out.end += build_connect(reserve(&c->out, 256), c);
        c->state = AWAIT_CONNACK;
        flush(c);
        return;
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c);
    if (events & EPOLLOUT) flush(c);
}

static int turn(int timeout_ms) {
    struct epoll_event events[512];
    int n = epoll_wait(epoll, events, 512, timeout_ms);
    for (int i = 0; i < n; i++)
        if (events[i].data.ptr) on_event(events[i].data.ptr, events[i].events);
    return n;
}

/* Connect (and subscribe) all of these, at most --in-progress of them at a time. */
static void bring_up(Connection *all, uint32_t count, int are_subscribers) {
    uint64_t deadline = now_ns() + SETUP_LIMIT;
    uint32_t opened = 0, base = ready_count;
    while (ready_count - base < count) {
        while (opened < count && opened - (ready_count - base) < option.in_progress) {
            all[opened].index = opened;
            all[opened].is_subscriber = are_subscribers;
            open_connection(&all[opened++]);
        }
        turn(100);
        if (now_ns() > deadline)
            fail("only %u of %u connections were accepted in %d s", ready_count - base, count,
                 (int)(SETUP_LIMIT / SECOND));
    }
}

/* ---- publishing ---- */

static void append_publish(Connection *c, uint64_t now) {
    uint32_t source = c->index * option.per_publisher + c->turn;
    uint8_t *p = reserve(&c->out, option.payload + PACKET_SPACE);
    if (option.qos) {
        if (!++c->packet_id) c->packet_id = 1;
        c->pending_ids[c->packet_id >> 3] |= (uint8_t)(1 << (c->packet_id & 7));
        c->unacknowledged++;
        if (c->sent_at) c->sent_at[c->packet_id] = now;
    }
    c->out.end += build_publish(p, source, c->sequences[c->turn]++, c->packet_id, now);
    if (++c->turn == option.per_publisher) c->turn = 0;
    sent++;
    measured_sent += (uint64_t)measuring;
    expected += receivers_of_topic[topic_of(source)];
}

static int may_publish(const Connection *c) {
    return c->out.end - c->out.start < WRITE_SIZE
        && (!option.qos || (c->unacknowledged < option.window && c->unacknowledged < receive_maximum));
}

/* How many more messages the end-to-end window allows. Skipped numbers count as done: they will not come. */
static uint64_t credit(void) {
    static uint64_t fan;
    if (option.qos && (!option.subscribers || keeps_session)) {  /* nobody is there: only acknowledgements count */
        uint64_t room = (uint64_t)option.window * option.publishers - (sent - acknowledged);
        return is_counted && room > option.messages - sent ? option.messages - sent : room;
    }
    if (!fan) {
        for (uint32_t i = 0; i < option.publishers; i++) fan += receivers_of_topic[i % option.topics];
        fan = (fan + option.publishers - 1) / option.publishers;
        if (!fan) fan = 1;
    }
    uint64_t outstanding = (expected - received - skipped + fan - 1) / fan;
    return outstanding >= option.window ? 0 : option.window - outstanding;
}

/* Publish as the window allows, the publishers taking turns. Returns whether more could be published at once. */
static int publish(void) {
    uint64_t left = credit(), now = now_ns();
    if (left < option.batch) return 0;
    uint32_t refused = 0, writes = 0;
    uint64_t share = left / option.publishers;
    if (!share) share = 1;
    while (left && refused < option.publishers) {
        Connection *c = turn_of;
        if (++turn_of == publishers + option.publishers) turn_of = publishers;
        if (!may_publish(c)) { refused++; continue; }
        refused = 0;
        if (option.one_packet_per_write) {
            append_publish(c, now_ns());
            left--;
            flush(c);
            if (++writes == WRITES_PER_TURN) return 1;
        } else {
            for (uint64_t i = 0; i < share && left && may_publish(c); i++, left--) append_publish(c, now);
            flush(c);
            if (option.publishers == 1) break;
        }
    }
    return left && refused < option.publishers;
}

/* ---- measuring ---- */

/* CPU seconds so far of all threads of the processes in --pid. /proc/PID/stat counts in clock ticks of 10 ms, which is
 * too coarse for slow traffic; schedstat counts nanoseconds. */
static double broker_cpu(void) {
    double seconds = 0;
    for (const char *p = option.pids; *p; p += strcspn(p, ","), p += *p == ',') {
        char path[300];
        snprintf(path, sizeof path, "/proc/%d/task", atoi(p));
        DIR *threads = opendir(path);
        if (!threads) fail("no process %d", atoi(p));
        for (struct dirent *entry; (entry = readdir(threads));) {
            unsigned long long ns;
            snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", atoi(p), entry->d_name);
            FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
            if (file && fscanf(file, "%llu", &ns) == 1) seconds += (double)ns / 1e9;
            if (file) fclose(file);
        }
        closedir(threads);
    }
    return seconds;
}

/* CPU seconds so far of the whole machine: with it, a report tells when something else was running too. */
static double machine_cpu(void) {
    unsigned long long user = 0, nice = 0, system = 0, irq = 0, softirq = 0, steal = 0;
    FILE *file = fopen("/proc/stat", "r");
    const char *format = "cpu %llu %llu %llu %*u %*u %llu %llu %llu";
    if (!file || fscanf(file, format, &user, &nice, &system, &irq, &softirq, &steal) != 6)
        fail("cannot read /proc/stat");
    fclose(file);
    return (double)(user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK);
}

static double own_cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
         + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

typedef struct { uint64_t time; double broker, own, machine; } Reading;

static Reading reading(void) { return (Reading){now_ns(), broker_cpu(), own_cpu(), machine_cpu()}; }

/* What neither the broker nor this program used: the clock ticks behind it make it a little negative at times. */
static double other_cpu(Reading from, Reading to) {
    double other = to.machine - from.machine - (to.broker - from.broker) - (to.own - from.own);
    return other > 0 ? other : 0;
}

static void report(Reading from, Reading to) {
    double seconds = (double)(to.time - from.time) / 1e9;
    uint64_t lost = expected > received ? expected - received : 0;
    printf("{\"mode\": \"%s\", \"mqtt\": %d, \"qos\": %d, \"publishers\": %u, \"subscribers\": %u, \"topics\": %u, "
           "\"payload\": %u, \"window\": %u, \"seconds\": %.6f, \"messages_in\": %llu, \"messages_out\": %llu, "
           "\"messages_acknowledged\": %llu, \"in_per_second\": %.1f, \"out_per_second\": %.1f, "
           "\"acknowledged_per_second\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, "
           "\"lost\": %llu, \"duplicated\": %llu, \"out_of_order\": %llu, \"misrouted\": %llu, \"damaged\": %llu, "
           "\"protocol_errors\": %llu, \"unacknowledged\": %llu, \"total_sent\": %llu, \"total_received\": %llu, "
           "\"late_max_us\": %.1f, \"generator_cpu_seconds\": %.4f, \"broker_cpu_seconds\": %.4f, "
           "\"other_cpu_seconds\": %.4f}\n",
           option.mode, option.mqtt, option.qos, option.publishers, option.subscribers, option.topics, option.payload,
           option.window, seconds, (unsigned long long)measured_sent, (unsigned long long)measured_received,
           (unsigned long long)measured_acknowledged, (double)measured_sent / seconds,
           (double)measured_received / seconds, (double)measured_acknowledged / seconds, percentile_us(0.5),
           percentile_us(0.99), (double)latency_max / 1e3, (unsigned long long)lost, (unsigned long long)duplicated,
           (unsigned long long)out_of_order, (unsigned long long)misrouted, (unsigned long long)damaged,
           (unsigned long long)protocol_errors, (unsigned long long)(option.qos ? sent - acknowledged : 0),
           (unsigned long long)sent, (unsigned long long)received, (double)late_max / 1e3, to.own - from.own,
           to.broker - from.broker, other_cpu(from, to));
}

static void set_up(void) {
    publishers = allocate(option.publishers, sizeof *publishers);
    subscribers = allocate(option.subscribers, sizeof *subscribers);
    next_sequence = allocate((size_t)option.publishers * option.per_publisher * option.subscribers, sizeof *next_sequence);
    receivers_of_topic = allocate(option.topics, sizeof *receivers_of_topic);
    for (uint32_t i = 0; i < option.subscribers; i++)
        for (uint32_t t = 0; t < option.topics; t++)
            receivers_of_topic[t] += !option.one_to_one || i % option.topics == t;
    bring_up(subscribers, option.subscribers, 1);
    bring_up(publishers, option.publishers, 0);
    for (uint32_t i = 0; i < option.publishers; i++) {
        Connection *c = &publishers[i];
        c->sequences = allocate(option.per_publisher, sizeof *c->sequences);
        if (option.qos) c->pending_ids = allocate(65536 / 8, 1);
        if (option.qos && !option.subscribers) c->sent_at = allocate(65536, sizeof *c->sent_at);
    }
    turn_of = publishers;
}

/* After the last publish: wait for what is still under way, as long as anything keeps coming. */
static void drain(void) {
    uint64_t before = received + acknowledged, last_progress = now_ns();
    while (received < expected || (option.qos && acknowledged < sent)) {
        turn(50);
        uint64_t now = now_ns();
        if (received + acknowledged != before) { before = received + acknowledged; last_progress = now; }
        else if (now - last_progress > STALL) break;
    }
}

/* While most of the window is under way the broker has work enough, and waking for every small delivery would only
 * cost this process a read each, and the broker the wake-up. So let deliveries gather a moment, as a network card
 * does with interrupts. Without it, "one packet per write" would measure this program. */
static void nap(void) {
    struct timespec moment = {.tv_nsec = NAP};
    if (credit() < option.window / 4) nanosleep(&moment, NULL);
}

static void run_throughput(void) {
    prctl(PR_SET_TIMERSLACK, 1);
    set_up();
    uint64_t start = now_ns(), last_progress = start, before = 0;
    uint64_t begin = start + (uint64_t)(option.warmup * 1e9), end = begin + (uint64_t)(option.seconds * 1e9);
    Reading from = {0}, to;
    replies = option.qos && !option.subscribers && option.window == 1;
    for (;;) {
        int more = replies && sent ? 0 : publish();
        if (!more && !replies) nap();
        turn(more ? 0 : 20);
        uint64_t now = now_ns();
        if (!measuring && now >= begin) { from = reading(); measuring = 1; }
        if (now >= end) break;
        if (received + acknowledged != before) { before = received + acknowledged; last_progress = now; }
        else if (now - last_progress > STALL) break;     /* the report will show what was lost */
    }
    to = reading();
    if (!from.time) from = to, from.time = start;
    measuring = replies = 0;
    drain();
    report(from, to);
}

static void run_paced(void) {
    prctl(PR_SET_TIMERSLACK, 1);
    set_up();
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    if (timer < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event)) fail("timerfd: %s", strerror(errno));
    uint64_t start = now_ns(), number = 0;
    uint64_t begin = start + (uint64_t)(option.warmup * 1e9), end = begin + (uint64_t)(option.seconds * 1e9);
    double interval = 1e9 / option.rate;
    Reading from = {0};
    for (uint64_t now = start; now < end; now = now_ns()) {
        if (!measuring && now >= begin) { from = reading(); measuring = 1; }
        uint64_t due = start + (uint64_t)((double)number * interval);
        if (now >= due) {
            Connection *c = &publishers[number++ % option.publishers];
            if (measuring && now - due > late_max) late_max = now - due;
            append_publish(c, now_ns());
            flush(c);
            turn(0);
            continue;
        }
        struct itimerspec at = {.it_value = {.tv_sec = (time_t)(due / SECOND), .tv_nsec = (long)(due % SECOND)}};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
        turn(20);
    }
    Reading to = reading();
    drain();                     /* what was sent in time is measured, however late it comes */
    measuring = 0;
    report(from, to);
}

/* Disconnect, and wait until the broker has closed its side: from then on it knows. */
static void leave(Connection *c) {
    struct timeval limit = {.tv_sec = 10};
    ssize_t n;
    if (c->tls) fail("catch-up: not with --tls");
    if (write(c->fd, "\xe0\0", 2) != 2) fail("writing to %s: %s", describe(c), strerror(errno));
    epoll_ctl(epoll, EPOLL_CTL_DEL, c->fd, NULL);
    fcntl(c->fd, F_SETFL, 0);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((n = read(c->fd, input, READ_SIZE)) > 0) {}
    if (n < 0) fail("the broker does not close the connection of %s: %s", describe(c), strerror(errno));
    close(c->fd);
    c->state = CLOSED;
}

/* Publish --messages, and wait until all are acknowledged. */
static void publish_all(void) {
    uint64_t before = 0, last_progress = now_ns();
    is_counted = 1;
    while (acknowledged < option.messages) {
        int more = publish();
        if (!more) nap();
        turn(more ? 0 : 20);
        if (acknowledged != before) { before = acknowledged; last_progress = now_ns(); }
        else if (now_ns() - last_progress > STALL) fail("no PUBACK came for %llu s", STALL / SECOND);
    }
}

static void run_fill(void) {
    if (!option.qos || option.subscribers) fail("fill: only with --qos 1 or 2, and --subscribers 0");
    set_up();
    Reading from = reading();
    measuring = 1;
    publish_all();
    report(from, reading());
}

/* Subscribers leave, --messages are published and acknowledged, and the subscribers come back. Measured is the time
 * from then to the last message. */
static void run_catch_up(void) {
    if (!option.qos || option.mqtt == 5) fail("catch-up: only with --qos 1 or 2, and MQTT 3.1.1");
    keeps_session = 1;
    set_up();
    for (uint32_t i = 0; i < option.subscribers; i++) leave(&subscribers[i]);
    publish_all();
    Reading from = reading();
    measuring = returning = 1;
    bring_up(subscribers, option.subscribers, 1);
    drain();
    report(from, reading());
}

static void run_connect(void) {
    publishers = allocate(option.connections, sizeof *publishers);
    Reading from = reading();
    bring_up(publishers, option.connections, 0);
    Reading to = reading();
    printf("{\"mode\": \"connect\", \"mqtt\": %d, \"connections\": %u, \"in_progress\": %u, \"seconds\": %.6f, "
           "\"generator_cpu_seconds\": %.4f, \"broker_cpu_seconds\": %.4f, \"other_cpu_seconds\": %.4f}\n",
           option.mqtt, ready_count, option.in_progress, (double)(to.time - from.time) / 1e9, to.own - from.own,
           to.broker - from.broker, other_cpu(from, to));
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
}

/* ---- ceiling: no broker, a process that answers CONNECT and SUBSCRIBE and then only moves bytes ---- */

typedef struct { int fd, is_connected; uint8_t *bytes; size_t size; } Peer;

static void write_all(int fd, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t n = write(fd, bytes, size);
        if (n <= 0) exit(0);
        bytes += n, size -= (size_t)n;
    }
}

static void forward(int listener) {
    int subscriber_fds[option.subscribers + 1], subscriber_count = 0, on = 1;
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int n = epoll_wait(ep, events, 256, -1);
        for (int i = 0; i < n; i++) {
            Peer *peer = events[i].data.ptr;
            if (!peer) {
                peer = allocate(1, sizeof *peer);
                peer->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
                peer->bytes = allocate(READ_SIZE, 1);
                setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                event.data.ptr = peer;
                epoll_ctl(ep, EPOLL_CTL_ADD, peer->fd, &event);
                continue;
            }
            ssize_t got = read(peer->fd, peer->bytes + peer->size, READ_SIZE - peer->size);
            if (got <= 0) exit(0);
            peer->size += (size_t)got;
            if (peer->bytes[0] == 0x10) {
                const uint8_t v3[] = {0x20, 2, 0, 0}, v5[] = {0x20, 3, 0, 0, 0};
                write_all(peer->fd, option.mqtt == 5 ? v5 : v3, option.mqtt == 5 ? 5 : 4);
                peer->size = 0;
            } else if (peer->bytes[0] == 0x82) {
                const uint8_t v3[] = {0x90, 3, 0, 1, 0}, v5[] = {0x90, 4, 0, 1, 0, 0};
                write_all(peer->fd, option.mqtt == 5 ? v5 : v3, option.mqtt == 5 ? 6 : 5);
                peer->size = 0;
                subscriber_fds[subscriber_count++] = peer->fd;
            } else {                             /* move whole packets */
                size_t whole = 0;
                for (;;) {
                    size_t length = 0, at = whole + 1;
                    unsigned shift = 0;
                    while (at < peer->size && peer->bytes[at] & 128) length |= (size_t)(peer->bytes[at++] & 127) << shift, shift += 7;
                    if (at >= peer->size) break;
                    length |= (size_t)peer->bytes[at] << shift;
                    if (at + 1 + length > peer->size) break;
                    whole = at + 1 + length;
                }
                for (int s = 0; s < subscriber_count; s++) write_all(subscriber_fds[s], peer->bytes, whole);
                memmove(peer->bytes, peer->bytes + whole, peer->size - whole);
                peer->size -= whole;
            }
        }
    }
}

static void run_ceiling(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (option.qos) fail("ceiling: only QoS 0, for nobody answers acknowledgements");
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)
        || getsockname(listener, (struct sockaddr *)&address, &size)) fail("listen: %s", strerror(errno));
    option.port = ntohs(address.sin_port);
    pid_t parent = getpid(), child = fork();
    if (child < 0) fail("fork: %s", strerror(errno));
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) exit(0);
        forward(listener);
    }
    char pids[16];
    sprintf(pids, "%d", child);
    option.pids = pids;
    run_throughput();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* ---- the command line ---- */

static const char usage[] =
    "usage: load throughput|paced|fill|catch-up|connect|ceiling [options]\n"
    "  --host ADDRESS          a loopback address (127.0.0.1)\n"
    "  --port PORT             the broker's port\n"
    "  --mqtt 3|5              MQTT 3.1.1 or 5.0 (3)\n"
    "  --properties            publish with a content type and a user property of varying length; needs --mqtt 5\n"
    "  --retain                publish retained messages\n"
    "  --tls                   connect over TLS, without verifying the broker\n"
    "  --user NAME             log in with this name, and the name as the password\n"
    "  --qos 0|1|2             of publishes and subscriptions (0)\n"
    "  --publishers N          (1)\n"
    "  --subscribers N         with 0, latency is that of acknowledgements (1)\n"
    "  --topics N              of all publishers together (1)\n"
    "  --per-publisher N       topics of one publisher, in turn; its first is its own number (1)\n"
    "  --one-to-one            subscriber i subscribes to topic i mod N; otherwise every one to all topics\n"
    "  --payload BYTES         at least 16 (64)\n"
    "  --json                  payloads are JSON objects of 58 to 172 bytes, instead of --payload random bytes\n"
    "  --window N              messages outstanding at most (4096)\n"
    "  --batch N               publish only when the window has room for so many (1)\n"
    "  --one-packet-per-write  and per TCP segment; otherwise as many per write as the window allows\n"
    "  --seconds S             measured time (2)\n"
    "  --warmup S              before it (0.5)\n"
    "  --rate R                paced: messages a second over all publishers (1000)\n"
    "  --messages N            fill, catch-up: how many are published (1000000)\n"
    "  --connections N         connect: how many (1000)\n"
    "  --in-progress N         connections being opened at a time (64)\n"
    "  --pid PID[,PID]         processes of the broker, whose CPU time is to be reported\n";

enum { HOST = 256, PORT, MQTT, PROPERTIES, RETAIN, TLS, USER, QOS, PUBLISHERS, SUBSCRIBERS, TOPICS, PER_PUBLISHER,
       ONE_TO_ONE, JSON, PAYLOAD,
       WINDOW, BATCH, ONE_PACKET, SECONDS, WARMUP, RATE, MESSAGES, CONNECTIONS, IN_PROGRESS, PID, HELP };

static const struct option long_options[] = {
    {"host", 1, 0, HOST}, {"port", 1, 0, PORT}, {"mqtt", 1, 0, MQTT}, {"properties", 0, 0, PROPERTIES},
    {"retain", 0, 0, RETAIN}, {"tls", 0, 0, TLS}, {"user", 1, 0, USER}, {"per-publisher", 1, 0, PER_PUBLISHER},
    {"qos", 1, 0, QOS}, {"publishers", 1, 0, PUBLISHERS}, {"subscribers", 1, 0, SUBSCRIBERS},
    {"topics", 1, 0, TOPICS}, {"one-to-one", 0, 0, ONE_TO_ONE}, {"json", 0, 0, JSON}, {"payload", 1, 0, PAYLOAD},
    {"window", 1, 0, WINDOW}, {"batch", 1, 0, BATCH}, {"one-packet-per-write", 0, 0, ONE_PACKET},
    {"seconds", 1, 0, SECONDS}, {"warmup", 1, 0, WARMUP}, {"rate", 1, 0, RATE},
    {"messages", 1, 0, MESSAGES}, {"connections", 1, 0, CONNECTIONS}, {"in-progress", 1, 0, IN_PROGRESS},
    {"pid", 1, 0, PID}, {"help", 0, 0, HELP}, {0, 0, 0, 0}};

static uint32_t count_of(const char *name, uint32_t least, uint32_t most) {
    char *end;
    unsigned long value = strtoul(optarg, &end, 10);
    if (*end || end == optarg || value < least || value > most)
        fail("--%s: between %u and %u, not %s", name, least, most, optarg);
    return (uint32_t)value;
}

static void read_command_line(int argc, char **argv) {
    for (int o; (o = getopt_long(argc, argv, "h", long_options, NULL)) != -1;) switch (o) {
    case HOST: option.host = optarg; break;
    case PORT: option.port = (int)count_of("port", 1, 65535); break;
    case MQTT: option.mqtt = (int)count_of("mqtt", 3, 5); break;
    case PROPERTIES: option.properties = 1; break;
    case QOS: option.qos = (int)count_of("qos", 0, 2); break;
    case PUBLISHERS: option.publishers = count_of("publishers", 1, 18000); break;
    case SUBSCRIBERS: option.subscribers = count_of("subscribers", 0, 18000); break;
    case TOPICS: option.topics = count_of("topics", 1, 1000000); break;
    case PER_PUBLISHER: option.per_publisher = count_of("per-publisher", 1, 1000000); break;
    case ONE_TO_ONE: option.one_to_one = 1; break;
    case JSON: option.json = 1; break;
    case RETAIN: option.retain = 1; break;
    case TLS: option.tls = 1; load_tls(); break;
    case USER: option.user = optarg; break;
    case PAYLOAD: option.payload = count_of("payload", STAMP, READ_SIZE / 2); break;
    case WINDOW: option.window = count_of("window", 1, 1000000); break;
    case BATCH: option.batch = count_of("batch", 1, 1000000); break;
    case ONE_PACKET: option.one_packet_per_write = 1; break;
    case SECONDS: option.seconds = atof(optarg); break;
    case WARMUP: option.warmup = atof(optarg); break;
    case RATE: option.rate = atof(optarg); break;
    case MESSAGES: option.messages = count_of("messages", 1, 1000000000); break;
    case CONNECTIONS: option.connections = count_of("connections", 1, 19000); break;
    case IN_PROGRESS: option.in_progress = count_of("in-progress", 1, 19000); break;
    case PID: option.pids = optarg; break;
    case HELP: case 'h': fputs(usage, stdout); exit(0);
    default: fputs(usage, stderr); exit(2);
    }
    if (optind != argc - 1) { fputs(usage, stderr); exit(2); }
    option.mode = argv[optind];
    if (option.qos && option.window > 32767) fail("--window: at most 32767 with QoS 1 or 2, for packet ids");
    if (option.properties && option.mqtt != 5) fail("--properties needs --mqtt 5");
    if (option.batch > option.window) fail("--batch is larger than --window");
    if (option.rate <= 0 || option.seconds <= 0) fail("--rate and --seconds must be above 0");
    if (strncmp(option.host, "127.", 4)) fail("--host: only loopback addresses (127.x.x.x)");
    if (!option.port && strcmp(option.mode, "ceiling")) fail("--port is needed");
    if (option.mqtt == 4) option.mqtt = 3;
}

int main(int argc, char **argv) {
    struct rlimit files;
    read_command_line(argc, argv);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    alarm((unsigned)(option.seconds + option.warmup) + 600);     /* whatever happens, it ends */
    epoll = epoll_create1(EPOLL_CLOEXEC);
    prepare_tables();
    if (!strcmp(option.mode, "throughput")) run_throughput();
    else if (!strcmp(option.mode, "paced")) run_paced();
    else if (!strcmp(option.mode, "fill")) run_fill();
    else if (!strcmp(option.mode, "catch-up")) run_catch_up();
    else if (!strcmp(option.mode, "connect")) run_connect();
    else if (!strcmp(option.mode, "ceiling")) run_ceiling();
    else { fputs(usage, stderr); return 2; }
    return 0;
}
