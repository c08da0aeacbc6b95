/* Preloaded (ld.so(8), LD_PRELOAD) into the processes of a test: sets their wall clock, and makes calls on chosen files
 * fail.
 *
 * The file that LD_FAULTS names is mapped as `struct faults`; a test changes it while the processes run (preloaded.py). A
 * child process of Headroom is given variables that begin with LD_. libfaketime, which sets clocks as well, makes
 * clock_nanosleep(2) on the monotonic clock fail, which is Python's time.sleep.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { READS = 1, WRITES = 2, MAPPED_BYTES = 4096 };

struct faults {
    int64_t clock_offset_s;
    uint8_t calls; /* that fail: READS, WRITES (and syncs) or both */
    uint8_t error;
    char part[]; /* of the paths that are meant */
};

static const struct faults *wanted;

__attribute__((constructor)) static void map(void)
{
    const char *path = getenv("LD_FAULTS");
    int fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, MAPPED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        wanted = at;
    if (fd >= 0)
        syscall(SYS_close, fd);
}

static int64_t offset_s(void) { return wanted ? __atomic_load_n(&wanted->clock_offset_s, __ATOMIC_RELAXED) : 0; }

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int status = syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset_s();
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int status = syscall(SYS_gettimeofday, now, zone);
    if (status == 0)
        now->tv_sec += offset_s();
    return status;
}

time_t time(time_t *seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}

static int fails(int fd, int calls)
{
    char link[32], path[1024];
    if (!wanted || !(__atomic_load_n(&wanted->calls, __ATOMIC_ACQUIRE) & calls))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    if (!strstr(path, wanted->part))
        return 0;
    errno = wanted->error;
    return 1;
}

ssize_t read(int fd, void *data, size_t size)
{
    return fails(fd, READS) ? -1 : syscall(SYS_read, fd, data, size);
}

ssize_t pread64(int fd, void *data, size_t size, off_t at)
{
    return fails(fd, READS) ? -1 : syscall(SYS_pread64, fd, data, size, at);
}

ssize_t pread(int fd, void *data, size_t size, off_t at) { return pread64(fd, data, size, at); }

ssize_t write(int fd, const void *data, size_t size)
{
    return fails(fd, WRITES) ? -1 : syscall(SYS_write, fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at)
{
    return fails(fd, WRITES) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

int fsync(int fd) { return fails(fd, WRITES) ? -1 : syscall(SYS_fsync, fd); }

int fdatasync(int fd) { return fails(fd, WRITES) ? -1 : syscall(SYS_fdatasync, fd); }
