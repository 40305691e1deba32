// The life of generations: addresses, shared memory, the other backend, and how they end.
#include "local/instance.h"

#include <unistd.h>

#include <algorithm>

#include "base/thread.h"
#include "local/bell.h"
#include "local/local_instance.h"

namespace hvd::local {
namespace {

// Before there was a generation: for peers that have it already.
void give_up(const Boxes& boxes) {
  boxes.own().state = static_cast<uint32_t>(BoxState::kGaveUp);
  for (int32_t i = 0; i < boxes.size(); ++i) {
    Box* const box = boxes.known(i);
    if (box != nullptr && i != boxes.index()) ring(box->bells.message);
  }
}

const char* what_travels(bool payload) { return payload ? "messages and data" : "messages alone"; }

}  // namespace

LocalInstance::LocalInstance(std::unique_ptr<backend::Instance> inner, backend::HostHandlers handlers,
                             LoggerPtr logger, Shares shares)
    : inner_(std::move(inner)),
      handlers_(std::move(handlers)),
      logger_(std::move(logger)),
      description_(inner_->description()),
      shares_(shares != Shares::kNothing) {
  if (shares != Shares::kMessages) {
    description_.collectives = kCollectives;
    description_.memories = uint64_t{1} << HVD_MEMORY_HOST;
    executor_ =
        std::make_unique<Executor>([this](Job& job, Time deadline) { return execute(job, deadline); });
  }
  description_.messages = description_.local = true;
  if (Status status = own_identity(&identity_); !status.ok()) stop_sharing(HVD_LOG_DEBUG, status.message);
  message_thread_ = start_thread("hvd-local", [this] { carry_messages(); });
}

LocalInstance::~LocalInstance() {
  end(take_current(), BoxState::kGaveUp);
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  message_thread_.join();
}

void LocalInstance::stop_sharing(hvd_log_level level, const std::string& why) {
  if (!shares_.exchange(false)) return;
  logger_->write(level, fmt::format("local: no memory is shared with the ranks of this host: {}", why));
}

Status LocalInstance::offers(std::vector<Offer>* ret_offers) {
  if (inherited()) return not_here();
  Address address;
  address.payload = executor_ != nullptr;
  std::vector<Offer> offers;
  if (Status status = inner_->offers(&offers); !status.ok()) return status;
  offers.front().memories = description_.memories;
  offers.front().collectives = description_.collectives;
  std::unique_ptr<OwnBox> box;
  if (shares_) {
    if (Status status = OwnBox::create(&box); status.ok()) {
      address.place = Place{identity_, getpid(), box->descriptor(), box->token()};
    } else {
      stop_sharing(HVD_LOG_DEBUG, status.message);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    next_ = std::move(box);
    announced_ = true;
  }
  offers.push_back({kRow, "", 0, 0, 0, encode(address)});
  *ret_offers = std::move(offers);
  return {};
}

// Those of a few ranks, or of ranks with a processor each, are all mapped here. Where many share processors,
// that would cost more than the rest of forming a generation: there only the neighbours' are, and others'
// when they are needed.
Status LocalInstance::map_peers(const Hosts& hosts, int32_t rank, const std::vector<Address>& addresses,
                                const std::vector<Member>& members, const std::shared_ptr<Box>& own,
                                std::shared_ptr<Boxes>* ret_boxes) {
  const auto& group = hosts.groups[static_cast<size_t>(hosts.group_of[static_cast<size_t>(rank)])];
  const auto me = static_cast<int32_t>(std::lower_bound(group.begin(), group.end(), rank) - group.begin());
  const auto size = static_cast<int32_t>(group.size());
  std::vector<Place> places;
  for (const int32_t other : group)
    places.push_back(addresses[static_cast<size_t>(other)].place.value_or(Place()));
  std::vector<std::shared_ptr<Box>> boxes(group.size());
  boxes[static_cast<size_t>(me)] = own;
  *ret_boxes = std::make_shared<Boxes>(
      std::move(boxes), me,
      [this, me, places = std::move(places)](int32_t index, std::shared_ptr<Box>* ret_box,
                                             std::string* reason) {
        const Place& place = places[static_cast<size_t>(index)];
        const Opening opening = open_box(place.process, place.descriptor, place.token, me, ret_box, reason);
        if (opening == Opening::kRefused) stop_sharing(HVD_LOG_WARNING, *reason);
        return opening;
      });
  std::vector<int32_t> first;
  if (size <= kMostAmongAll || !crowded(group.size())) {
    for (int32_t i = 0; i < size; ++i) first.push_back(i);
  } else {
    first = neighbours(me, size);
  }
  for (const int32_t index : first) {
    std::string reason;
    const Opening opening = (*ret_boxes)->try_reach(index, &reason);
    if (opening == Opening::kDone) continue;
    const int32_t other = group[static_cast<size_t>(index)];
    Status status =
        error(HVD_PEER_LOST, fmt::format("rank {} ({}): its shared memory can't be had: {}", other,
                                         members[static_cast<size_t>(other)].host, reason));
    return opening == Opening::kGone ? status.at_rank(other) : status;  // else this process is at fault
  }
  return {};
}

/// Each rank's word about its shared memory.
Status LocalInstance::read_addresses(const std::vector<Member>& members, std::span<Address> addresses) const {
  for (size_t i = 0; i < members.size(); ++i) {
    const Offer* const offer = find_offer(members[i], kRow);
    Status status = offer != nullptr ? decode(offer->address, &addresses[i])
                                     : Status(HVD_INVALID,
                                              "none that tells of shared memory: option local must "
                                              "be the same on all workers");
    if (!status.ok()) {
      status.message = fmt::format("address of rank {} ({}): {}", i, members[i].host, status.message);
      status.backend = "local";
      return status.at_rank(static_cast<int32_t>(i));
    }
    if (addresses[i].payload != (executor_ != nullptr)) {
      status =
          error(HVD_INVALID, fmt::format("rank {} ({}) shares {} with the ranks of its host, this rank {}: "
                                         "option local must be the same on all workers",
                                         i, members[i].host, what_travels(addresses[i].payload),
                                         what_travels(executor_ != nullptr)));
      return status.at_rank(static_cast<int32_t>(i));
    }
  }
  return {};
}

Status LocalInstance::connect(uint64_t number, int32_t rank, const std::vector<Member>& members,
                              Duration timeout) {
  if (inherited()) return not_here();
  end(take_current(), BoxState::kGaveUp);
  std::unique_ptr<OwnBox> own;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(announced_, false)) {
      return error(HVD_INVALID,
                   fmt::format("connect to generation {}: offers was not called for it", number));
    }
    own = std::move(next_);
    if (gate_.given_up(number)) return given_up(number);
  }
  if (members.empty() || rank < 0 || static_cast<size_t>(rank) >= members.size()) {
    return error(HVD_INVALID, fmt::format("rank {} of {}", rank, members.size()));
  }
  std::vector<Address> addresses(members.size());
  if (Status status = read_addresses(members, addresses); !status.ok()) return status;
  const auto& place = addresses[static_cast<size_t>(rank)].place;
  if (place.has_value() != (own != nullptr) || (own != nullptr && place->token != own->token())) {
    return error(HVD_INVALID, fmt::format("the address of rank {} is not the one that this rank gave", rank));
  }
  Hosts hosts = group_by_host(members, addresses);
  const std::shared_ptr<Box> memory = own != nullptr ? own->memory() : private_box();
  std::shared_ptr<Boxes> boxes;
  if (Status status = map_peers(hosts, rank, addresses, members, memory, &boxes); !status.ok()) {
    give_up(*boxes);
    return status.in_generation(number);
  }
  const auto generation =
      std::make_shared<Generation>(number, rank, std::move(hosts), std::move(own), boxes, handlers_, logger_);
  for (int32_t i = 0; i < generation->size(); ++i) {
    generation->all.push_back(i);
    generation->indices.push_back(generation->index_of(i));
  }
  {
    const std::lock_guard lock(mutex_);
    if (!gate_.enter(number)) {
      generation->messages.stop(BoxState::kGaveUp);
      return given_up(number);
    }
    current_ = generation;
  }
  if (needs_inner(*generation)) {
    if (Status status = inner_->connect(number, rank, members, timeout); !status.ok()) {
      GenerationPtr mine;
      {
        const std::lock_guard lock(mutex_);
        if (gate_.leave(number)) mine = take();  // else abort has taken it
      }
      end(std::move(mine), BoxState::kGaveUp);
      return status;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (!gate_.inside(number)) return given_up(number);
    connected_ = true;
  }
  changed_.notify_all();
  return {};
}

void LocalInstance::end(GenerationPtr generation, BoxState last) {
  if (generation == nullptr) return;
  generation->messages.stop(last);
  generation->group.abort();
  if (executor_ != nullptr) executor_->nudge();  // progress lends nobody any more
  if (needs_inner(*generation)) {
    if (last == BoxState::kLeft) {
      inner_->disconnect();
    } else {
      inner_->abort(generation->number);
    }
  }
  const std::lock_guard lock(mutex_);
  --ending_;
  changed_.notify_all();  // under the lock: then the message thread may be the last to touch this
  ended_.push_back(std::move(generation));  // its memory is not given back here
}

void LocalInstance::abort(uint64_t number) {
  if (inherited()) return;
  GenerationPtr generation;
  {
    const std::lock_guard lock(mutex_);
    if (!gate_.give_up(number)) return;
    generation = take();
  }
  end(std::move(generation), BoxState::kGaveUp);
}

void LocalInstance::carry_messages() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::vector<GenerationPtr> ended = std::move(ended_);
    ended_.clear();
    GenerationPtr generation = connected_ ? current_ : nullptr;
    if (!ended.empty() || generation != nullptr) {
      lock.unlock();
      ended.clear();
      if (generation != nullptr) generation->messages.run();
      generation.reset();
      lock.lock();
      continue;
    }
    if (closing_ && ending_ == 0) return;
    changed_.wait(lock);
  }
}

Status LocalInstance::send_message(int32_t destination, std::span<const uint8_t> data) {
  if (inherited()) return not_here();
  const GenerationPtr generation = current();
  if (generation == nullptr) return error(HVD_PEER_LOST, "no generation is connected");
  if (destination < 0 || destination >= generation->size() || destination == generation->rank) {
    return error(HVD_INVALID, fmt::format("a message to rank {} from rank {} of {}", destination,
                                          generation->rank, generation->size()));
  }
  if (data.size() > kMostMessage) {
    return error(HVD_INVALID,
                 fmt::format("a message of {} bytes: expected at most {}", data.size(), kMostMessage));
  }
  const int32_t index = generation->indices[static_cast<size_t>(destination)];
  if (index < 0) return inner_->send_message(destination, data);
  Status status = generation->messages.send(index, data);
  if (!status.ok()) status.backend = "local";
  return status;
}

std::shared_ptr<backend::Board> LocalInstance::board() {
  if (inherited()) return nullptr;
  const GenerationPtr generation = current();
  if (generation == nullptr || generation->joins_hosts() || generation->size() < 2) return nullptr;
  return generation->group.board();
}

bool LocalInstance::takes_parts() const {
  if (inherited() || executor_ == nullptr) return false;
  const GenerationPtr generation = current();
  return generation != nullptr && !generation->joins_hosts();  // between hosts the other backend packs them
}

std::string LocalInstance::detail() const {
  const GenerationPtr generation = current();
  const size_t local = generation == nullptr ? 1 : generation->local.size();
  if (local == 1) return inner_->detail();
  if (executor_ == nullptr) {
    return fmt::format("{}, messages by shared memory among {} ranks of this host", inner_->detail(), local);
  }
  const std::string shared = fmt::format("shared memory among {} ranks of this host", local);
  return generation->joins_hosts() ? shared + ", " + inner_->detail() + " between hosts" : shared;
}

std::unique_ptr<backend::Instance> make_instance(std::unique_ptr<backend::Instance> inner,
                                                 backend::HostHandlers handlers, LoggerPtr logger,
                                                 Shares shares) {
  return std::make_unique<LocalInstance>(std::move(inner), std::move(handlers), std::move(logger), shares);
}

}  // namespace hvd::local
