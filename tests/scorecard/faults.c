/* Faults for one process, put between it and the C library by LD_PRELOAD.
 *
 * Every call that changes something below one folder is counted: opening for writing, writing, syncing, truncating,
 * renaming, linking, making and removing. At the n-th of them the process is killed, or killed in the middle of a write, or
 * signalled, or the call fails, once or from then on, or writes less than it was given. Without faults_set nothing
 * happens, so that a server may be started with it and only its forked children have faults.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum action { COUNT, KILL, TEAR, FAIL, SHORT, SIGNAL };

static char folder[PATH_MAX], kinds[256], journal[PATH_MAX];
static int action, value, lasting;
static long nth;
static atomic_long calls;

void faults_set(const char *below, const char *which, long at, int what, int number, int stays, const char *log_to)
{
    snprintf(kinds, sizeof kinds, "%s", which);
    snprintf(journal, sizeof journal, "%s", log_to);
    nth = at, action = what, value = number, lasting = stays;
    atomic_store(&calls, 0);
    snprintf(folder, sizeof folder, "%s", below);
}

static int below(const char *path)
{
    size_t length = strlen(folder);
    return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* The path of a descriptor; empty if it has none. */
static const char *of_descriptor(int fd, char *out)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    out[length > 0 ? length : 0] = 0;
    return out;
}

/* The absolute path of `path`, which begins in the folder `at` or the working directory. */
static const char *absolute(int at, const char *path, char *out)
{
    char start[PATH_MAX];
    if (path[0] == '/')
        return path;
    if (at == AT_FDCWD ? !getcwd(start, sizeof start) : !of_descriptor(at, start)[0])
        return path;
    if (snprintf(out, PATH_MAX, "%s/%s", start, path) >= PATH_MAX)
        return path;
    return out;
}

/* Through system calls alone, so that it is not counted itself. */
static void note(long number, const char *kind, const char *path)
{
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, kind, path);
    int fd = syscall(SYS_openat, AT_FDCWD, journal, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0 && syscall(SYS_write, fd, line, length) >= 0)
        syscall(SYS_close, fd);
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

/* What to do at this call: COUNT for nothing. KILL and SIGNAL are done here. */
static enum action strike(const char *kind, const char *path)
{
    if (!folder[0] || !below(path) || (kinds[0] && !strstr(kinds, kind)))
        return COUNT;
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (journal[0])
        note(number, kind, path);
    if (nth < 1 || number < nth || (number > nth && !lasting))
        return COUNT;
    if (action == KILL)
        die();
    if (action == SIGNAL)
        syscall(SYS_kill, getpid(), value);
    return action == SIGNAL ? COUNT : number > nth && action == SHORT ? FAIL : action;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define REFUSE do { errno = value; return -1; } while (0)
#define AT(kind, at, path) \
    do { \
        char whole_[PATH_MAX]; \
        if (folder[0] && strike(kind, absolute(at, path, whole_)) == FAIL) \
            REFUSE; \
    } while (0)
#define ON(kind, fd) \
    do { \
        char whole_[PATH_MAX]; \
        if (folder[0] && strike(kind, of_descriptor(fd, whole_)) == FAIL) \
            REFUSE; \
    } while (0)

static int changes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

#define OPEN(name, at, ...) \
    { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        if (changes(flags)) \
            AT("open", at, path); \
        return real(__VA_ARGS__, flags, mode); \
    }
int open(const char *path, int flags, ...) OPEN(open, AT_FDCWD, path)
int open64(const char *path, int flags, ...) OPEN(open64, AT_FDCWD, path)
int openat(int at, const char *path, int flags, ...) OPEN(openat, at, at, path)
int openat64(int at, const char *path, int flags, ...) OPEN(openat64, at, at, path)

FILE *fopen_(const char *path, const char *how, FILE *(*real)(const char *, const char *))
{
    char whole[PATH_MAX];
    if (folder[0] && strpbrk(how, "wa+") && strike("open", absolute(AT_FDCWD, path, whole)) == FAIL) {
        errno = value;
        return NULL;
    }
    return real(path, how);
}
FILE *fopen(const char *path, const char *how) { REAL(fopen); return fopen_(path, how, real); }
FILE *fopen64(const char *path, const char *how) { REAL(fopen64); return fopen_(path, how, real); }

/* How many bytes to write of `size`: all, or half of them, after which TEAR kills. */
static ssize_t share(int fd, size_t size, int *torn)
{
    char whole[PATH_MAX];
    if (!folder[0])
        return size;
    enum action now = strike("write", of_descriptor(fd, whole));
    *torn = now == TEAR;
    if (now == FAIL)
        REFUSE;
    return (now == TEAR || now == SHORT) && size > 1 ? size / 2 : size;
}

ssize_t write(int fd, const void *from, size_t size)
{
    REAL(write);
    int torn = 0;
    ssize_t part = share(fd, size, &torn);
    ssize_t done = part < 0 ? -1 : real(fd, from, part);
    if (torn)
        die();
    return done;
}
#define PWRITE(name, type) \
    ssize_t name(int fd, const void *from, size_t size, type place) \
    { \
        REAL(name); \
        int torn = 0; \
        ssize_t part = share(fd, size, &torn); \
        ssize_t done = part < 0 ? -1 : real(fd, from, part, place); \
        if (torn) \
            die(); \
        return done; \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
size_t fwrite(const void *from, size_t size, size_t number, FILE *stream)
{
    REAL(fwrite);
    int torn = 0;
    ssize_t part = stream == stdout || stream == stderr ? (ssize_t)number : share(fileno(stream), number, &torn);
    size_t done = part < 0 ? 0 : real(from, size, part, stream);
    if (torn) {
        fflush(stream);
        die();
    }
    return done;
}
ssize_t writev(int fd, const struct iovec *parts, int number)
{
    REAL(writev);
    int torn = 0;
    ssize_t some = share(fd, number > 1 ? number : 2, &torn); /* of its parts */
    ssize_t done = some < 0 ? -1 : real(fd, parts, some < number ? some : number);
    if (torn)
        die();
    return done;
}
ssize_t sendfile(int to, int from, off_t *place, size_t size) { REAL(sendfile); ON("write", to); return real(to, from, place, size); }
ssize_t sendfile64(int to, int from, off64_t *place, size_t size) { REAL(sendfile64); ON("write", to); return real(to, from, place, size); }
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags)
{
    REAL(copy_file_range);
    ON("write", to);
    return real(from, a, to, b, size, flags);
}

int fsync(int fd) { REAL(fsync); ON("sync", fd); return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); ON("sync", fd); return real(fd); }
int ftruncate(int fd, off_t size) { REAL(ftruncate); ON("truncate", fd); return real(fd, size); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); ON("truncate", fd); return real(fd, size); }
int truncate(const char *path, off_t size) { REAL(truncate); AT("truncate", AT_FDCWD, path); return real(path, size); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); AT("mkdir", AT_FDCWD, path); return real(path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { REAL(mkdirat); AT("mkdir", at, path); return real(at, path, mode); }
int unlink(const char *path) { REAL(unlink); AT("remove", AT_FDCWD, path); return real(path); }
int unlinkat(int at, const char *path, int flags) { REAL(unlinkat); AT("remove", at, path); return real(at, path, flags); }
int rmdir(const char *path) { REAL(rmdir); AT("remove", AT_FDCWD, path); return real(path); }
int rename(const char *old, const char *new) { REAL(rename); AT("rename", AT_FDCWD, new); return real(old, new); }
int renameat(int a, const char *old, int b, const char *new) { REAL(renameat); AT("rename", b, new); return real(a, old, b, new); }
int renameat2(int a, const char *old, int b, const char *new, unsigned flags)
{
    REAL(renameat2);
    AT("rename", b, new);
    return real(a, old, b, new, flags);
}
int link(const char *old, const char *new) { REAL(link); AT("link", AT_FDCWD, new); return real(old, new); }
int symlink(const char *to, const char *path) { REAL(symlink); AT("link", AT_FDCWD, path); return real(to, path); }
