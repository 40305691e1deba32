// Forms a generation's communicator, runs its operations, ends it.
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
  if (started_by_launcher()) runtime.ready(Clock::now() + kLaunch);
  const World world = runtime.world();
  Address address;
  address.world = world.id;
  address.rank = world.rank;
  address.size = world.size;
  return address;
}

}  // namespace

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
    formed();
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

MPI_Comm Generation::form(Joining& joining) {
  // Two tags a generation, each lower than all before it: see make_group. What MPI allows is known when it
  // has begun, which in a newcomer may be a moment from now.
  const auto tag_of = [number = number_] {
    const int bound = Runtime::get().tag_bound() / 2;
    return 2 * (bound - 1 - static_cast<int>(number % static_cast<uint64_t>(bound - 1)));
  };
  const auto result = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  std::vector<Team>& teams = joining.teams;
  const std::vector<int> survivors = teams[team_of(teams, rank_)].world_ranks;
  std::vector<size_t> sizes;
  for (const Team& team : teams) sizes.push_back(team.members.size());
  Runtime::get().check_teams(sizes);
  perform(joining, "find its peers of before in MPI", [result, survivors, tag_of, sizes] {
    Runtime& mpi = Runtime::get();
    mpi.ready(Clock::now() + kLaunch);
    mpi.check_joining(sizes);
    mpi.sweep();
    *result = make_group(mpi.world().comm, survivors, tag_of() + 1);
    if (sizes.size() == 1) acquaint(*result);
  });
  if (teams.size() == 1) {
    // In the world's order; the generation's may be another.
    const std::vector<int>& members = teams[0].members;
    if (std::is_sorted(members.begin(), members.end())) return *result;
  }

  if (teams.size() > 1) join_teams(joining, result);

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

void Generation::join_teams(Joining& joining, const std::shared_ptr<MPI_Comm>&) {
  throw Failure(HVD_INTERNAL,
                std::to_string(joining.teams.size()) + " teams, and nothing that would join them");
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
