#include "api/standalone.h"

#include <charconv>
#include <memory>

#include "api/handles.h"
#include "base/status.h"

namespace hvd::api {

namespace {

struct Source {
  const char* rank;
  const char* size;
  const char* name;
};
constexpr Source kSources[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"},
    {"SLURM_PROCID", "SLURM_NTASKS", "Slurm"},
    {"PMI_RANK", "PMI_SIZE", "PMI"},
    {"RANK", "WORLD_SIZE", "torchrun"},
};

int64_t number(const std::string& variable, const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    throw Error(HVD_INVALID, fmt::format("{} is '{}': expected an integer", variable, text));
  }
  return value;
}

Placement checked(Placement place) {
  if (place.size < 1 || place.rank < 0 || place.rank >= place.size) {
    throw Error(HVD_INVALID, fmt::format("rank {} of {} (from {}): expected 0 <= rank < size", place.rank,
                                         place.size, place.source));
  }
  return place;
}

std::string rendezvous_of(const Options& options) {
  std::string endpoint = options.string("rendezvous");
  if (!endpoint.empty()) return endpoint;
  const auto address = options.environment("MASTER_ADDR");
  const auto port = options.environment("MASTER_PORT");
  if (address && port) return *address + ":" + *port;
  throw Error(
      HVD_INVALID,
      "a job of several workers without a driver needs option rendezvous (HVD_RENDEZVOUS), host:port of rank "
      "0, or MASTER_ADDR and MASTER_PORT");
}

StandaloneDriver start_driver(const Options& worker, const Placement& place, const std::string& endpoint) {
  hvd_error error = HVD_ERROR_INIT;
  const auto check = [&](hvd_status status) {
    if (status != HVD_OK) throw Error(Status::from(status, error));
  };
  hvd_options options;
  options.options = worker;
  options.options.set("listen", endpoint);
  options.options.set("np", place.size);
  options.options.set("min_np", place.size);
  options.options.set("max_np", place.size);
  options.options.set("restart", false);
  options.options.set("discovery_script", std::string());
  options.options.set("hosts", fmt::format("standalone:{}", place.size));
  hvd_driver* raw = nullptr;
  check(hvd_driver_create(&options, &raw, &error));
  StandaloneDriver driver(raw, {place.size});
  // The workers are there already: nothing is to be started or stopped.
  const auto start = [](void*, const hvd_launch*) -> int32_t { return 0; };
  const auto stop = [](void*, uint64_t, int32_t) {};
  check(hvd_driver_set_launcher(raw, start, stop, nullptr, nullptr, &error));
  check(hvd_driver_start(raw, &error));
  return driver;
}

}  // namespace

std::optional<Placement> find_placement(const Options& options) {
  const int64_t rank = options.integer("rank");
  const int64_t size = options.integer("size");
  if (rank >= 0 || size >= 0) return checked({rank, size, "HVD_RANK and HVD_SIZE"});
  for (const Source& source : kSources) {
    const auto rank_text = options.environment(source.rank);
    const auto size_text = options.environment(source.size);
    if (!rank_text || !size_text) continue;
    return checked({number(source.rank, *rank_text), number(source.size, *size_text), source.name});
  }
  return std::nullopt;
}

StandaloneDriver prepare_standalone(Options& options) {
  if (!options.string("driver").empty()) return nullptr;
  const auto place = find_placement(options);
  if (!place || place->size == 1) return nullptr;
  if (options.string("secret").empty()) {
    throw Error(HVD_INVALID,
                "a job of several workers without a driver needs option secret (HVD_SECRET), the same on "
                "every worker, 32 to 512 characters");
  }
  const std::string endpoint = rendezvous_of(options);
  if (options.string("job").empty()) options.set("job", std::string("standalone"));
  StandaloneDriver driver;
  if (place->rank == 0) driver = start_driver(options, *place, endpoint);
  options.set("driver", endpoint);
  options.set("worker", place->rank + 1);  // the driver counts its workers from 1, in order of slots
  options.set("slot", place->rank);
  return driver;
}

}  // namespace hvd::api
