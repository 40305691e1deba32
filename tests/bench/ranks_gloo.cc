// Gloo's own collectives over TCP, full mesh, found through a FileStore.
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "ranks.h"

namespace {

struct Group {
  std::shared_ptr<gloo::rendezvous::Context> context;
  uint32_t tag = 0;
};

template <typename Operation>
int guarded(Operation operation) {
  try {
    operation();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo: %s\n", error.what());
    return 1;
  }
}

int broadcast(void* self, const bench_buffer* buffer) {
  auto* group = static_cast<Group*>(self);
  return guarded([&] {
    gloo::BroadcastOptions options(group->context);
    options.setOutput(buffer->data, buffer->bytes / sizeof(float));
    options.setRoot(buffer->root);
    options.setTag(++group->tag);
    gloo::broadcast(options);
  });
}

int allreduce(void* self, const bench_buffer* buffer) {
  auto* group = static_cast<Group*>(self);
  return guarded([&] {
    gloo::AllreduceOptions options(group->context);
    options.setOutput(buffer->data, buffer->bytes / sizeof(float));
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setTag(++group->tag);
    gloo::allreduce(options);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s rank size address\n", argv[0]);
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  const bench_place place = {std::atoi(argv[1]), std::atoi(argv[2]),
                             bench_environment("HVD_BENCH_DIRECTORY")};
  const bench_operation operations[] = {{"broadcast", 'b', nullptr, broadcast, nullptr},
                                        {"allreduce", 's', nullptr, allreduce, nullptr},
                                        {nullptr, 0, nullptr, nullptr, nullptr}};
  Group group;
  const int status = guarded([&] {
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(argv[3]));
    group.context = std::make_shared<gloo::rendezvous::Context>(place.rank, place.size);
    gloo::rendezvous::FileStore store(place.directory);
    group.context->connectFullMesh(store, device);
  });
  return status != 0 ? status : bench_serve(&place, operations, &group);
}
