// Reads the environments of launchers, and serves the others from rank 0.
#include "api/standalone.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "api/guard.h"
#include "base/status.h"
#include "selection/selection.h"
#include "selection/world.h"

namespace hvd::api {

namespace {

struct Source {
  const char* rank;
  const char* size;
  const char* name;
  const char* besides = nullptr;  // has to be set as well
};
// One may have been started by another, and its children inherit both's: those that run within others come
// first. Slurm sets rank and size in a batch script too, where there is one process; a step has its number
// besides.
constexpr Source kSources[] = {
    {"RANK", "WORLD_SIZE", "torchrun", "TORCHELASTIC_RUN_ID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"},
    {"PMI_RANK", "PMI_SIZE", "PMI"},
    {"RANK", "WORLD_SIZE", "torchrun"},
    {"SLURM_PROCID", "SLURM_NTASKS", "Slurm", "SLURM_STEP_ID"},
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

std::optional<std::string> rendezvous_of(const Options& options) {
  std::string endpoint = options.string("rendezvous");
  if (!endpoint.empty()) return endpoint;
  const auto address = options.environment("MASTER_ADDR");
  const auto port = options.environment("MASTER_PORT");
  if (address && port) return *address + ":" + *port;
  return std::nullopt;
}

StandaloneDriver start_driver(const Options& worker, const Placement& place, const std::string& endpoint) {
  hvd_error error = HVD_ERROR_INIT;
  const auto check = [&](hvd_status status) {
    if (status != HVD_OK) throw Error(Status::from(status, error));
  };
  Options options = worker;
  options.set("listen", endpoint);
  options.set("np", place.size);
  options.set("min_np", place.size);
  options.set("max_np", place.size);
  options.set("restart", false);
  options.set("discovery_script", std::string());
  options.set("helper", std::string("off"));  // nobody is started, nobody joins
  options.set("hosts", fmt::format("standalone:{}", place.size));
  hvd_driver* raw = make_driver(options);
  StandaloneDriver driver(raw, {place.size});
  // The workers are there already: nothing is to be started or stopped.
  const auto start = [](void*, const hvd_launch*) -> int32_t { return 0; };
  const auto stop = [](void*, uint64_t, int32_t) {};
  check(hvd_driver_set_launcher(raw, start, stop, nullptr, nullptr, &error));
  check(hvd_driver_start(raw, &error));
  return driver;
}

void become(Options& options, const Placement& place, const std::string& endpoint) {
  options.set("driver", endpoint);
  options.set("worker", place.rank + 1);  // the driver counts its workers from 1, in order of slots
  options.set("slot", place.rank);
}

/// What rank 0 tells the others through MPI. Every field ends with NUL.
struct Invitation {
  std::array<char, 300> endpoint{};
  std::array<char, 520> secret{};
  std::array<char, 200> job{};
  std::array<char, 600> failure{};  // why rank 0 can't: then there is nothing else
};

template <size_t size>
void put(std::array<char, size>& field, const std::string& text, bool may_be_cut = false) {
  if (!may_be_cut && text.size() >= size) {
    throw Error(HVD_INVALID,
                fmt::format("{} characters are too many: expected less than {}", text.size(), size));
  }
  field.fill(0);
  std::memcpy(field.data(), text.data(), std::min(text.size(), size - 1));
}

template <size_t size>
std::string get(std::array<char, size>& field) {
  field.back() = 0;
  return field.data();
}

std::string random_secret() {
  std::array<unsigned char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(HVD_UNAVAILABLE, fmt::format("no random bytes from the kernel: {}", std::strerror(errno)));
  }
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// Do all ranks share this host, as far as the launcher tells?
bool on_one_host(const Options& options, int32_t size) {
  for (const char* variable :
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"}) {
    if (const auto text = options.environment(variable)) return *text == std::to_string(size);
  }
  return false;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) {
    throw Error(HVD_UNAVAILABLE, fmt::format("this host has no name: {}", std::strerror(errno)));
  }
  return name.data();
}

StandaloneDriver invite(Options& options, const Placement& place, Invitation* ret_invitation) {
  if (options.string("secret").empty()) options.set("secret", random_secret());
  if (options.string("job").empty()) options.set("job", std::string("standalone"));
  const bool here = on_one_host(options, static_cast<int32_t>(place.size));
  StandaloneDriver driver = start_driver(options, place, here ? "127.0.0.1:0" : "0.0.0.0:0");
  hvd_error error = HVD_ERROR_INIT;
  hvd_driver_status_info info{};
  info.struct_size = sizeof info;
  if (const hvd_status status = hvd_driver_get_status(driver.get(), &info, &error); status != HVD_OK) {
    throw Error(Status::from(status, error));
  }
  put(ret_invitation->endpoint, fmt::format("{}:{}", here ? "127.0.0.1" : host_name(), info.port));
  put(ret_invitation->secret, options.string("secret"));
  put(ret_invitation->job, options.string("job"));
  return driver;
}

/// Started by mpirun or srun, and told nothing else: MPI knows the group, and carries address and secret of a
/// driver within rank 0 to the others.
StandaloneDriver meet_through_mpi(Options& options, Placement place) {
  const std::string wanted = fmt::format(
      "rank {} of {} (from {}) has no driver: expected option rendezvous (HVD_RENDEZVOUS), host:port of rank "
      "0, and secret (HVD_SECRET); or MASTER_ADDR and MASTER_PORT; or an MPI that knows the others",
      place.rank, place.size, place.source);
  const Duration timeout = options.duration("init_timeout");
  selection::World world;
  if (Status status = selection::World::open(options, timeout, &world); !status.ok()) {
    if (status.code != HVD_UNAVAILABLE) throw Error(status);
    throw Error(HVD_INVALID, fmt::format("{} ({})", wanted, status.message));
  }
  // A scheduler's variables may tell of another group than MPI does (several steps in one allocation).
  place.rank = world.rank();
  place.size = world.size();
  if (place.size == 1) return nullptr;
  StandaloneDriver driver;
  Invitation invitation;
  std::optional<Error> failure;
  if (place.rank == 0) {
    try {
      driver = invite(options, place, &invitation);
    } catch (const Error& error) {
      failure = error;
      put(invitation.failure, error.what(), true);
    }
  }
  const Status told = world.broadcast(&invitation, sizeof invitation, timeout);
  if (failure) throw Error(*failure);
  if (!told.ok()) throw Error(told);
  if (const std::string why = get(invitation.failure); !why.empty()) {
    throw Error(HVD_UNAVAILABLE, "rank 0 could not begin the job: " + why);
  }
  options.set("secret", get(invitation.secret));
  options.set("job", get(invitation.job));
  options.set("elastic", false);  // the launcher ends all of them when one is lost
  become(options, place, get(invitation.endpoint));
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
    if (source.besides != nullptr && !options.environment(source.besides)) continue;
    return checked({number(source.rank, *rank_text), number(source.size, *size_text), source.name});
  }
  return std::nullopt;
}

Options with_identity(Options options) {
  if (!options.string("driver").empty()) return options;
  const auto place = find_placement(options);
  if (place && place->size > 1) options.set("worker", place->rank + 1);
  return options;
}

StandaloneDriver prepare_standalone(Options& options) {
  if (!options.string("driver").empty()) return nullptr;
  const auto place = find_placement(options);
  if (!place || place->size == 1) return nullptr;
  const auto endpoint = rendezvous_of(options);
  if (!endpoint) return meet_through_mpi(options, *place);
  if (options.string("secret").empty()) {
    throw Error(HVD_INVALID,
                "a job of several workers without a driver needs option secret (HVD_SECRET), the same on "
                "every worker, 32 to 512 characters");
  }
  if (options.string("job").empty()) options.set("job", std::string("standalone"));
  StandaloneDriver driver;
  if (place->rank == 0) driver = start_driver(options, *place, *endpoint);
  become(options, *place, *endpoint);
  return driver;
}

}  // namespace hvd::api
