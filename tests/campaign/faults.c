// A preload library: system calls that change files fail, write short or take long, now and then, or the process is
// killed at one of them. For scripts/campaign and tests/program/append_calls_e2e_test.cpp.
//
//   HAYLOFT_FAULTS_FOLDER   only files below this folder are touched
//   HAYLOFT_FAULTS_SEED     which calls: a different sequence for each seed
//   HAYLOFT_FAULTS_EVERY    one call in so many goes wrong
//   HAYLOFT_FAULTS_KILL_AT  instead of that: the process is killed at the call of this number, from 1 on, before the
//                           call has any effect
//   HAYLOFT_FAULTS_HALF     that call, if it writes, first writes half of its bytes
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum Fault { none, no_space, input_output, short_write, interrupted, delay };

static uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

static uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

static int is_ours(const char* path) {
  const char* folder = getenv("HAYLOFT_FAULTS_FOLDER");
  return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_our_descriptor(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = '\0';
  return is_ours(path);
}

static _Atomic uint64_t calls = 0;

// Counts a call on one of our files. 2: the process ends at this one.
static enum Fault next_fault(int* kill_now) {
  const uint64_t call = atomic_fetch_add(&calls, 1);
  const uint64_t kill_at = number_of("HAYLOFT_FAULTS_KILL_AT", 0);
  if (kill_at > 0) {
    *kill_now = call + 1 == kill_at;
    return none;
  }
  const uint64_t number = mix(number_of("HAYLOFT_FAULTS_SEED", 1) * 1000003 + call);
  const uint64_t rate = number_of("HAYLOFT_FAULTS_EVERY", 10);
  if (rate == 0 || number % rate != 0) return none;
  return (enum Fault)(1 + (number >> 32) % 5);
}

static void die(void) {
  raise(SIGKILL);
}

static void wait_a_little(void) {
  const struct timespec time = {0, 2000000};
  nanosleep(&time, NULL);
}

// Whether the call goes on; *count may be made shorter. Otherwise errno is set. *last: the process ends once the
// shortened call has been made.
static int goes_on(int descriptor, size_t* count, int* last) {
  if (!is_our_descriptor(descriptor)) return 1;
  int kill_now = 0;
  const enum Fault fault = next_fault(&kill_now);
  if (kill_now) {
    if (!count || *count < 2 || !getenv("HAYLOFT_FAULTS_HALF")) die();
    *count /= 2;
    *last = 1;
    return 1;
  }
  switch (fault) {
    case no_space:
      errno = ENOSPC;
      return 0;
    case input_output:
      errno = EIO;
      return 0;
    case interrupted:
      errno = EINTR;
      return 0;
    case short_write:
      if (count && *count > 1) *count /= 2;
      return 1;
    case delay:
      wait_a_little();
      return 1;
    default:
      return 1;
  }
}

// The same for calls that name a file: they fail or are made.
static int name_goes_on(const char* path) {
  char folder[4096];
  if (path && path[0] != '/' && getcwd(folder, sizeof folder)) path = folder;
  if (!is_ours(path)) return 1;
  int kill_now = 0;
  const enum Fault fault = next_fault(&kill_now);
  if (kill_now) die();
  if (fault != no_space && fault != input_output) return 1;
  errno = fault == no_space ? ENOSPC : EIO;
  return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void* data, size_t count) {
  int last = 0;
  if (!goes_on(descriptor, &count, &last)) return -1;
  const ssize_t written = REAL(write)(descriptor, data, count);
  if (last) die();
  return written;
}
ssize_t pwrite(int descriptor, const void* data, size_t count, off_t offset) {
  int last = 0;
  if (!goes_on(descriptor, &count, &last)) return -1;
  const ssize_t written = REAL(pwrite)(descriptor, data, count, offset);
  if (last) die();
  return written;
}
ssize_t pwrite64(int descriptor, const void* data, size_t count, off64_t offset) {
  int last = 0;
  if (!goes_on(descriptor, &count, &last)) return -1;
  const ssize_t written = REAL(pwrite64)(descriptor, data, count, offset);
  if (last) die();
  return written;
}
int fsync(int descriptor) {
  int last = 0;
  return goes_on(descriptor, NULL, &last) ? REAL(fsync)(descriptor) : -1;
}
int fdatasync(int descriptor) {
  int last = 0;
  return goes_on(descriptor, NULL, &last) ? REAL(fdatasync)(descriptor) : -1;
}
int ftruncate(int descriptor, off_t length) {
  int last = 0;
  return goes_on(descriptor, NULL, &last) ? REAL(ftruncate)(descriptor, length) : -1;
}
int ftruncate64(int descriptor, off64_t length) {
  int last = 0;
  return goes_on(descriptor, NULL, &last) ? REAL(ftruncate64)(descriptor, length) : -1;
}
int fchmod(int descriptor, mode_t mode) {
  int last = 0;
  return goes_on(descriptor, NULL, &last) ? REAL(fchmod)(descriptor, mode) : -1;
}
int rename(const char* from, const char* to) {
  return name_goes_on(to) ? REAL(rename)(from, to) : -1;
}
int unlink(const char* path) {
  return name_goes_on(path) ? REAL(unlink)(path) : -1;
}

// Counts from 1 again, in a process that has come from fork().
void hayloft_faults_restart(void) {
  atomic_store(&calls, 0);
}
