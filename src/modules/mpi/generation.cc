#include "modules/mpi/generation.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvdmpi {

using hvdkit::Blob;
using hvdkit::Greeting;
using hvdkit::LinkGroup;
using hvdkit::LinkHooks;

namespace {

constexpr std::chrono::milliseconds kLook{20};
constexpr int kMostStuck = 8;
constexpr std::chrono::seconds kLaunch{60};

Address here() {
  Runtime& runtime = Runtime::get();
  // Where this process stands among those of its launcher only MPI knows.
  if (runtime.launched()) runtime.ready(Clock::now() + kLaunch);
  const World world = runtime.world();
  Address address;
  address.world = world.id;
  address.rank = world.rank;
  address.size = world.size;
  return address;
}

}  // namespace

// Where this rank stands in the joining of a generation.
struct Generation::Joining {
  const hvd_backend_group& group;
  Clock::time_point deadline;
  int steps = 0;  // that every rank has told
  uint64_t segment_bytes = 0;
  std::vector<Team> teams;
};

Generation::Generation(const Config& config, const hvd_backend_host& host)
    : config_(config),
      host_(host),
      mine_(here()),
      links_(config.ip, LinkHooks{[this](int source, const void* data, size_t size) {
                                    host_.message(host_.context, number_, source, data, size);
                                  },
                                  [this](int peer, const std::string& text) {
                                    if (!reported_.exchange(true))
                                      host_.failure(host_.context, number_, peer, text.c_str());
                                  },
                                  [this](const std::string& text) {
                                    host_.log(host_.context, HVD_LOG_WARNING, text.c_str());
                                  }}) {}

Generation::~Generation() { teardown(); }

void Generation::assign(const hvd_backend_group& group) {
  number_ = group.generation;
  rank_ = group.rank;
  size_ = group.size;
  std::lock_guard<std::mutex> lock(mutex_);
  connecting_ = true;
}

void Generation::connect(const hvd_backend_group& group) {
  struct Leaving {
    Generation& self;
    ~Leaving() {
      std::lock_guard<std::mutex> lock(self.mutex_);
      self.connecting_ = false;
      self.changed_.notify_all();
    }
  } const leaving{*this};

  const std::chrono::nanoseconds timeout(group.timeout_ns);
  Joining joining{group, Clock::now() + timeout, 0, config_.segment_bytes, {}};
  MPI_Comm comm = MPI_COMM_NULL;
  if (size_ > 1) {
    if (const int stuck = Call::stuck(); stuck > kMostStuck) {
      throw Failure(HVD_UNAVAILABLE, std::to_string(stuck) +
                                         " calls into MPI hang in this process: it has to be started anew");
    }
    Runtime::get().wait_for_others(joining.deadline);
    greet(group, joining);
    Runtime::get().reach(number_);
    try {
      comm = form(joining);
    } catch (...) {
      Runtime::get().disturbed();
      if (const int stuck = Call::stuck(); stuck > 0) {
        const std::string text = "generation " + std::to_string(number_) + ": " + std::to_string(stuck) +
                                 " call(s) into MPI hang and are left behind";
        host_.log(host_.context, HVD_LOG_WARNING, text.c_str());
      }
      throw;
    }
    tell_of_shield();
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
    engine_ =
        Engine::start({comm, rank_, size_, number_, config_.elastic, joining.segment_bytes,
                       Runtime::get().tag_bound(), Runtime::get().fault_tolerant()},
                      [this](const Failure& failure) {
                        const Failure verdict = failure.status == HVD_PEER_LOST && failure.rank < 0
                                                    ? links_.blame(-1, failure.what())
                                                    : failure;
                        if (!reported_.exchange(true))
                          host_.failure(host_.context, number_, verdict.rank, verdict.what());
                        return Failure(verdict.status, verdict.what(), verdict.rank, failure.vendor_code);
                      });
  }
  links_.open();
}

// Once a process.
void Generation::tell_of_shield() const {
  static std::atomic<bool> told{false};
  Runtime& runtime = Runtime::get();
  if (runtime.launched() || told.exchange(true)) return;
  if (runtime.shielded())
    return host_.log(host_.context, HVD_LOG_DEBUG, "MPI's TCP is kept from the deaths of peers");
#ifdef OPEN_MPI
  const std::string library = "component btl/tcp of Open MPI";
#else
  const std::string library = "libfabric under MPICH";
#endif
  const std::string text =
      "MPI's TCP can't be kept from the deaths of peers (no " + library +
      " was found, or its calls can't be reached): a death may make MPI useless in other workers as well, which then "
      "have to start anew";
  host_.log(host_.context, HVD_LOG_WARNING, text.c_str());
}

void Generation::greet(const hvd_backend_group& group, Joining& joining) {
  LinkGroup links{group.generation, group.rank, {}};
  std::vector<Address> addresses;
  for (int peer = 0; peer < size_; ++peer) {
    const hvd_backend_member& member = group.members[peer];
    try {
      addresses.push_back(Address::decode(member.address, member.address_size));
      links.members.push_back(Blob::decode(member.address, Blob::kSize));
    } catch (const Failure& failure) {
      throw Failure(HVD_INVALID, "member " + std::to_string(peer) + ": " + failure.what(), peer);
    }
  }
  joining.teams = teams_of(addresses);
  // What must be the same everywhere: how payload is cut.
  const uint64_t words[2] = {config_.segment_bytes, config_.elastic ? 1U : 0U};
  Greeting mine(sizeof(words));
  std::memcpy(mine.data(), words, sizeof(words));
  const std::vector<Greeting> theirs = links_.greet(
      std::move(links), std::vector<Greeting>(static_cast<size_t>(size_), mine), joining.deadline);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Greeting& greeting = theirs[static_cast<size_t>(peer)];
    uint64_t their[2] = {};
    if (greeting.size() == sizeof(their)) std::memcpy(their, greeting.data(), sizeof(their));
    if (their[0] == 0 || their[1] != words[1]) {
      throw Failure(HVD_INVALID,
                    "rank " + std::to_string(peer) + " and rank " + std::to_string(rank_) +
                        " don't agree on the option 'elastic'",
                    peer);
    }
    joining.segment_bytes = std::min(joining.segment_bytes, static_cast<size_t>(their[0]));
  }
}

// Until the call has ended. It can't say that a peer is lost, the links can.
void Generation::wait(Call& call, const std::string& what, Clock::time_point deadline) {
  const int peer = rank_ == 0 ? 1 : 0;
  while (!call.wait(std::min(deadline, Clock::now() + kLook))) {
    links_.wait_steps(peer, 0, what, deadline);  // throws if a peer is lost, or after abort
    if (Clock::now() >= deadline) {
      throw Failure(HVD_TIMEOUT,
                    "rank " + std::to_string(rank_) + " did not " + what + " before the deadline");
    }
  }
}

// A blocking call of every rank. Ends when all have ended theirs.
void Generation::perform(Joining& joining, const std::string& what, std::function<void()> body,
                         const std::function<void()>& succeeded) {
  const std::shared_ptr<Call> call = Call::start(std::move(body), [this](bool failed) {
    if (failed) return links_.abort();  // frees the wait below, and the peers'
    for (int peer = 0; peer < size_; ++peer) {
      try {
        if (peer != rank_) links_.tell_step(peer);
      } catch (const Failure&) {
        // The wait below says so.
      }
    }
  });
  const int step = ++joining.steps;
  try {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) links_.wait_steps(peer, step, what, joining.deadline);
    }
    wait(*call, what, joining.deadline);
  } catch (...) {
    call->abandon();
    // A peer was lost after this rank's part was done, and most likely after the others'.
    if (call->succeeded() && succeeded) succeeded();
    call->rethrow();
    throw;
  }
  call->rethrow();
  if (succeeded) succeeded();
}

std::string Generation::port_of(Joining& joining, int round, int pair, bool accepts) {
  const std::string key = "mpi.port." + std::to_string(round) + "." + std::to_string(pair);
  hvd_error error = HVD_ERROR_INIT;
  if (accepts) {
    auto port = std::make_shared<std::string>();
    const std::shared_ptr<Call> call = Call::start([port] { *port = open_port(); });
    try {
      wait(*call, "open a port", joining.deadline);
    } catch (...) {
      call->abandon();
      throw;
    }
    call->rethrow();
    if (host_.kv_set(host_.context, number_, key.c_str(), port->data(), port->size(), &error) != HVD_OK) {
      throw Failure(error.status, std::string("the port of MPI could not be told: ") + error.message);
    }
    return *port;
  }
  char name[MPI_MAX_PORT_NAME + 1] = {};
  size_t size = MPI_MAX_PORT_NAME;
  const auto left = std::chrono::nanoseconds(joining.deadline - Clock::now());
  const hvd_status status = host_.kv_get(host_.context, number_, key.c_str(),
                                         std::max<int64_t>(left.count(), 1), name, &size, &error);
  if (status != HVD_OK) throw Failure(status, std::string("the port of MPI did not come: ") + error.message);
  return {name, std::min<size_t>(size, MPI_MAX_PORT_NAME)};
}

MPI_Comm Generation::form(Joining& joining) {
  Runtime& runtime = Runtime::get();
  // Two tags a generation, each lower than all before it: see make_group. What MPI allows is known when it has begun,
  // which in a newcomer may be a moment from now.
  const auto tag_of = [number = number_] {
    const int bound = Runtime::get().tag_bound() / 2;
    return 2 * (bound - 1 - static_cast<int>(number % static_cast<uint64_t>(bound - 1)));
  };
  const auto result = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  std::vector<Team>& teams = joining.teams;
  if (teams.size() > 1 && !runtime.can_join()) {
    throw Failure(
        HVD_UNAVAILABLE,
        "the processes of this generation were started apart, and MPI joins them by way of a server: "
        "OMPI_MCA_pmix_server_uri (Open MPI 4) or HVD_PMIX_SERVER (5 and later) has to say where it is");
  }

  const std::vector<int> survivors = teams[team_of(teams, rank_)].world_ranks;
  std::vector<size_t> sizes;
  for (const Team& team : teams) sizes.push_back(team.members.size());
  perform(joining, "find its peers of before in MPI", [result, survivors, tag_of, sizes] {
    Runtime& mpi = Runtime::get();
    mpi.ready(Clock::now() + kLaunch);
    if (sizes.size() > 1) mpi.check_joining(sizes);
    mpi.sweep();
    *result = make_group(mpi.world().comm, survivors, tag_of() + 1);
    if (sizes.size() == 1) acquaint(*result);
  });
  if (teams.size() == 1) {
    // In the world's order; the generation's may be another.
    const std::vector<int>& members = teams[0].members;
    if (std::is_sorted(members.begin(), members.end())) return *result;
  }

  for (int round = 0; teams.size() > 1; ++round) {
    const std::vector<Pairing> pairs = pair_up(teams.size());
    const auto mine = static_cast<int>(team_of(teams, rank_));
    const Team& team = teams[static_cast<size_t>(mine)];
    const Pairing& pair = pairs[static_cast<size_t>(mine / 2)];
    const bool accepts = pair.accepting == mine;
    std::function<void()> body = [] {};
    MPI_Comm before = *result;
    if (pair.connecting >= 0) {
      std::string port;
      if (team.members[0] == rank_) port = port_of(joining, round, mine / 2, accepts);
      body = [result, before, accepts, port] { *result = join(before, accepts, port); };
    }
    const std::vector<Team> after = joined(teams, number_);
    const Team& with = after[team_of(after, rank_)];
    const auto adopt = [&] {
      if (pair.connecting < 0) return;
      const auto place = std::find(with.members.begin(), with.members.end(), rank_);
      runtime.adopt({with.world, static_cast<int>(place - with.members.begin()),
                     static_cast<int>(with.members.size()), *result},
                    static_cast<int>(with.members.size() - team.members.size()));
      if (round == 0) runtime.discard(before);
    };
    perform(joining,
            "join rank " + std::to_string(teams[static_cast<size_t>(pair.accepting)].members[0]) +
                "'s processes in MPI",
            body, adopt);
    teams = after;
  }

  // By rank in the generation; and the world's own communicator stays free of data.
  std::vector<int> order(static_cast<size_t>(size_));
  for (size_t place = 0; place < teams[0].members.size(); ++place) {
    order[static_cast<size_t>(teams[0].members[place])] = static_cast<int>(place);
  }
  MPI_Comm all = *result;
  perform(joining, "take its place in MPI", [result, all, order, tag_of] {
    *result = make_group(all, order, tag_of());
    acquaint(*result);
  });
  return *result;
}

void Generation::submit(Task task) {
  std::shared_ptr<Engine> engine;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_ || engine_ == nullptr) throw Failure(HVD_PEER_LOST, "the generation was given up");
    engine = engine_;
  }
  engine->submit(std::move(task));
}

void Generation::send(int destination, const void* data, size_t size) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_ || engine_ == nullptr) throw Failure(HVD_PEER_LOST, "the generation was given up");
  }
  links_.send(destination, data, size);
}

void Generation::leave() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (engine_ != nullptr) engine_->leave();
  }
  links_.leave();
}

void Generation::abort() {
  std::shared_ptr<Engine> engine;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    engine = engine_;
  }
  links_.abort();  // frees connect as well
  if (engine != nullptr) engine->abort();
}

void Generation::teardown() {
  std::shared_ptr<Engine> engine;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !connecting_; });
    engine = std::exchange(engine_, nullptr);
  }
  if (engine != nullptr) engine->stop();
  links_.stop();
}

}  // namespace hvdmpi
