/* Read bandwidth of the memory: threads that add up a buffer, each reading several rows at once.
 *
 * Weights are read like this, row beside row. One stream a thread leaves bandwidth unused: the
 * hardware prefetches each of several streams. Every thread sums its own part; a part is read in
 * blocks of STREAMS rows of ROW bytes.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { STREAMS = 8, ROW = 8192, LANES = 8 };

typedef struct {
  const uint64_t *data;
  size_t bytes;
  int rounds;
  uint64_t sum;
  pthread_barrier_t *start;
} Part;

typedef uint64_t Vector __attribute__((vector_size(64), aligned(64)));

static void *read_part(void *argument) {
  Part *part = argument;
  Vector sums[STREAMS] = {{0}};
  pthread_barrier_wait(part->start);
  for (int round = 0; round < part->rounds; round++) {
    for (size_t block = 0; block + STREAMS * ROW <= part->bytes; block += STREAMS * ROW) {
      const char *rows = (const char *)part->data + block;
      for (size_t at = 0; at < ROW; at += sizeof(Vector)) {
        for (int s = 0; s < STREAMS; s++) sums[s] += *(const Vector *)(rows + s * ROW + at);
      }
    }
  }
  for (int s = 0; s < STREAMS; s++) {
    for (int lane = 0; lane < LANES; lane++) part->sum += sums[s][lane];
  }
  pthread_barrier_wait(part->start);
  return NULL;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Bytes a second with which `threads` threads read a buffer of `bytes` `rounds` times; 0 where
 * there is no memory for it. */
double read_bandwidth(size_t bytes, int threads, int rounds) {
  size_t share = bytes / (size_t)threads / (STREAMS * ROW) * (STREAMS * ROW);
  if (share == 0) share = STREAMS * ROW;
  size_t total = share * (size_t)threads;
  char *data = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return 0;
  madvise(data, total, MADV_HUGEPAGE);
  for (size_t i = 0; i < total; i += 64) data[i] = (char)i;
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
  Part *parts = calloc((size_t)threads, sizeof(Part));
  pthread_t *ids = calloc((size_t)threads, sizeof(pthread_t));
  for (int i = 0; i < threads; i++) {
    parts[i] = (Part){(const uint64_t *)(data + share * (size_t)i), share, rounds, 0, &barrier};
    pthread_create(&ids[i], NULL, read_part, &parts[i]);
  }
  pthread_barrier_wait(&barrier);
  double began = now();
  pthread_barrier_wait(&barrier);
  double seconds = now() - began;
  for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  munmap(data, total);
  free(parts);
  free(ids);
  pthread_barrier_destroy(&barrier);
  return (double)total * rounds / seconds;
}
