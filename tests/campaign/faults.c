// A preload library: calls that change files fail, write short or take long, now and then. For scripts/campaign.
//
//   HAYLOFT_FAULTS_FOLDER  only files below this folder are touched
//   HAYLOFT_FAULTS_SEED    which calls: a different sequence for each seed
//   HAYLOFT_FAULTS_EVERY   one call in so many goes wrong
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static int is_ours(int descriptor) {
  const char* folder = getenv("HAYLOFT_FAULTS_FOLDER");
  if (!folder) return 0;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = '\0';
  return strncmp(path, folder, strlen(folder)) == 0;
}

static enum Fault next_fault(int descriptor) {
  static _Atomic uint64_t calls = 0;
  if (!is_ours(descriptor)) return none;
  const char* seed = getenv("HAYLOFT_FAULTS_SEED");
  const char* every = getenv("HAYLOFT_FAULTS_EVERY");
  const uint64_t number = mix((seed ? strtoull(seed, NULL, 10) : 1) * 1000003 + atomic_fetch_add(&calls, 1));
  const uint64_t rate = every ? strtoull(every, NULL, 10) : 10;
  if (rate == 0 || number % rate != 0) return none;
  return (enum Fault)(1 + (number >> 32) % 5);
}

static void wait_a_little(void) {
  const struct timespec time = {0, 2000000};
  nanosleep(&time, NULL);
}

// Whether the call goes on; *count may be made shorter. Otherwise errno is set.
static int goes_on(int descriptor, size_t* count) {
  switch (next_fault(descriptor)) {
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

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void* data, size_t count) {
  return goes_on(descriptor, &count) ? REAL(write)(descriptor, data, count) : -1;
}
ssize_t pwrite(int descriptor, const void* data, size_t count, off_t offset) {
  return goes_on(descriptor, &count) ? REAL(pwrite)(descriptor, data, count, offset) : -1;
}
ssize_t pwrite64(int descriptor, const void* data, size_t count, off64_t offset) {
  return goes_on(descriptor, &count) ? REAL(pwrite64)(descriptor, data, count, offset) : -1;
}
int fsync(int descriptor) {
  return goes_on(descriptor, NULL) ? REAL(fsync)(descriptor) : -1;
}
int fdatasync(int descriptor) {
  return goes_on(descriptor, NULL) ? REAL(fdatasync)(descriptor) : -1;
}
int ftruncate(int descriptor, off_t length) {
  return goes_on(descriptor, NULL) ? REAL(ftruncate)(descriptor, length) : -1;
}
int ftruncate64(int descriptor, off64_t length) {
  return goes_on(descriptor, NULL) ? REAL(ftruncate64)(descriptor, length) : -1;
}
