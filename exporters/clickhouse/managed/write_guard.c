/* Preloaded (ld.so(8), LD_PRELOAD) into the ClickHouse server of the chdb wheel: ends the process when a write to a file
 * fails.
 *
 * chdb's WriteBufferFromFileDescriptor::nextImpl ignores a failed write(2), where ClickHouse throws. On a full disk it
 * so completes parts whose files are empty: it confirms inserts that are not stored, and replaces parts by a merged one
 * that nobody can read. A process that ends before the part is renamed leaves a temporary directory, which the next
 * start removes; parts that it was made from are still there, and the insert was not confirmed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sysexits.h>
#include <unistd.h>

static int loses_data(int fd, int error)
{
    struct stat file;
    if (error != ENOSPC && error != EDQUOT && error != EIO && error != EFBIG)
        return 0;
    return fd > STDERR_FILENO && fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
}

static void end_process(int fd, int error)
{
    char link[32], path[512], line[640];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = '\0';
    errno = error; /* for %m */
    snprintf(line, sizeof line, "Error: cannot write to %s: %m\n", path);
    syscall(SYS_write, STDERR_FILENO, line, strlen(line));
    _exit(EX_IOERR); /* no handlers: they would write to the disk */
}

ssize_t write(int fd, const void *data, size_t size)
{
    ssize_t written = syscall(SYS_write, fd, data, size);
    if (written < 0 && loses_data(fd, errno))
        end_process(fd, errno);
    return written;
}
