/* Open MPI (or another MPI), bare. */
#include <mpi.h>
#include <stdio.h>

#include "ranks.h"

static int broadcast(void *self, const bench_buffer *buffer) {
  (void)self;
  return MPI_Bcast(buffer->data, (int)(buffer->bytes / sizeof(float)), MPI_FLOAT, buffer->root,
                   MPI_COMM_WORLD);
}

static int allreduce(void *self, const bench_buffer *buffer) {
  (void)self;
  return MPI_Allreduce(MPI_IN_PLACE, buffer->data, (int)(buffer->bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
  static const bench_operation operations[] = {{"broadcast", 'b', NULL, broadcast, NULL},
                                               {"allreduce", 's', NULL, allreduce, NULL},
                                               {NULL, 0, NULL, NULL, NULL}};
  bench_place place = {0, 0, bench_environment("HVD_BENCH_DIRECTORY")};
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &place.size);
  int status = bench_serve(&place, operations, NULL);
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
