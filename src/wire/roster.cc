// Columns of members, and differences of addresses.
#include "wire/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "base/text.h"
#include "wire/member.h"

namespace hvd::wire {
namespace {

constexpr size_t kMostMembers = size_t{1} << 22;
constexpr size_t kMostBytes = size_t{256} << 20;  // of all addresses: small differences can make long ones
constexpr size_t kLeastSame = 4;                  // bytes that are worth being left out

void require(bool holds, const char* what) {
  if (!holds) throw Error(HVD_INVALID, fmt::format("a roster with {}", what));
}

// ---- addresses ----
//
// All addresses of all members, by rank and then by offer, stand in a row. Those that equal their reference
// are counted and left out: [how many were left out][length][pieces], again and again. A piece is [bytes as
// in the reference at this place] [bytes that follow][those bytes], until the length is reached. Numbers are
// LEB128.

using Blob = std::vector<uint8_t>;

/// What an address is told as the difference from.
class References {
 public:
  /// own: the member as the receiver knows it, or null.
  const Blob& of(const hvd::Member* own, const std::string& backend) const {
    if (own != nullptr) {
      if (const Offer* offer = find_offer(*own, backend)) return offer->address;
    }
    for (const auto& [name, blob] : last_) {
      if (name == backend) return *blob;
    }
    return none_;
  }
  /// blob: stays where it is.
  void remember(const std::string& backend, const Blob& blob) {
    for (auto& [name, last] : last_) {
      if (name != backend) continue;
      last = &blob;
      return;
    }
    last_.emplace_back(backend, &blob);
  }

 private:
  const Blob none_{};
  std::vector<std::pair<std::string, const Blob*>> last_;
};

class AddressWriter {
 public:
  void add(const Blob& blob, const Blob& reference) {
    if (blob == reference) {
      ++left_out_;
      return;
    }
    number(std::exchange(left_out_, 0));
    number(blob.size());
    const auto same_at = [&](size_t i) {
      return i < blob.size() && i < reference.size() && blob[i] == reference[i];
    };
    for (size_t at = 0; at < blob.size();) {
      size_t fresh = at;
      while (same_at(fresh)) ++fresh;
      size_t end = fresh;  // of what is fresh: before the next bytes that are worth it
      for (size_t same = 0; end < blob.size() && same < kLeastSame;) {
        same = same_at(end) ? same + 1 : 0;
        ++end;
        if (same == kLeastSame) end -= same;
      }
      number(fresh - at);
      number(end - fresh);
      bytes.insert(bytes.end(), blob.begin() + static_cast<ptrdiff_t>(fresh),
                   blob.begin() + static_cast<ptrdiff_t>(end));
      at = end;
    }
  }
  std::vector<uint8_t> bytes;

 private:
  void number(size_t value) {
    for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<uint8_t>(value | 0x80));
    bytes.push_back(static_cast<uint8_t>(value));
  }
  size_t left_out_ = 0;
};

class AddressReader {
 public:
  explicit AddressReader(std::span<const uint8_t> bytes) : bytes_(bytes) { next(); }

  Blob read(const Blob& reference) {
    if (left_out_ > 0 || over_) {
      if (!over_) --left_out_;
      count(reference.size());
      return reference;
    }
    const size_t size = number(kMostAddress);
    count(size);
    Blob blob;
    blob.reserve(size);
    while (blob.size() < size) {
      const size_t at = blob.size(), same = number(size - at);
      require(at + same <= reference.size() || same == 0,
              "an address that refers to bytes that are not there");
      blob.insert(blob.end(), reference.begin() + static_cast<ptrdiff_t>(std::min(at, reference.size())),
                  reference.begin() + static_cast<ptrdiff_t>(std::min(at, reference.size()) + same));
      const size_t fresh = number(size - blob.size());
      require(same + fresh > 0 && fresh <= bytes_.size(), "an address that is cut off");
      blob.insert(blob.end(), bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(fresh));
      bytes_ = bytes_.subspan(fresh);
    }
    next();
    return blob;
  }
  void finish() const { require(over_ && bytes_.empty(), "more addresses than offers"); }

 private:
  void next() {
    over_ = bytes_.empty();
    left_out_ = over_ ? 0 : number(kMostMembers * kMostOffers);
  }
  void count(size_t size) {
    total_ += size;
    require(total_ <= kMostBytes, "addresses that are too long together");
  }
  size_t number(size_t most) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      require(!bytes_.empty() && shift < 63, "an address that is cut off");
      const uint8_t byte = bytes_.front();
      bytes_ = bytes_.subspan(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    require(value <= most, "an address of impossible length");
    return static_cast<size_t>(value);
  }

  std::span<const uint8_t> bytes_;
  size_t left_out_ = 0, total_ = 0;
  bool over_ = false;
};

// ---- columns ----

std::string profile_key(const hvd::Member& member) {
  std::string key;
  for (const Offer& offer : member.offers) {
    key += fmt::format("{}\n{}\n{:x},{:x},{:x}\n", offer.backend, offer.lacking, offer.memories, offer.dtypes,
                       offer.collectives);
  }
  return key;
}

bool same_profile(const hvd::Member& a, const hvd::Member& b) {
  return std::equal(a.offers.begin(), a.offers.end(), b.offers.begin(), b.offers.end(),
                    [](const Offer& x, const Offer& y) {
                      return x.backend == y.backend && x.lacking == y.lacking && x.memories == y.memories &&
                             x.dtypes == y.dtypes && x.collectives == y.collectives;
                    });
}

std::unique_ptr<RosterProfileT> write_profile(const hvd::Member& member) {
  auto profile = std::make_unique<RosterProfileT>();
  std::vector<Offer> bare = member.offers;
  for (Offer& offer : bare) offer.address.clear();
  profile->backends = write_offers(bare);
  return profile;
}

/// Where each member stood in the generation that is known; -1: nowhere.
std::vector<int32_t> former_ranks(const std::vector<hvd::Member>& members, const Known* known) {
  std::vector<int32_t> former(members.size(), -1);
  if (known == nullptr) return former;
  std::unordered_map<uint64_t, int32_t> by_worker;
  by_worker.reserve(known->members.size());
  for (size_t i = 0; i < known->members.size(); ++i)
    by_worker.emplace(known->members[i].worker, static_cast<int32_t>(i));
  for (size_t i = 0; i < members.size(); ++i) {
    const auto found = by_worker.find(members[i].worker);
    if (found == by_worker.end() ||
        known->members[static_cast<size_t>(found->second)].host != members[i].host)
      continue;
    former[i] = found->second;
  }
  return former;
}

/// On each host 0, 1, 2 ... in the order of the ranks.
std::vector<int32_t> rising_local_ranks(const std::vector<hvd::Member>& members) {
  std::unordered_map<std::string_view, int32_t> on_host;
  std::vector<int32_t> ranks;
  ranks.reserve(members.size());
  for (const hvd::Member& member : members) ranks.push_back(on_host[member.host]++);
  return ranks;
}

void one_more(RosterRun* run) { *run = RosterRun(run->from(), run->count() + 1); }
void one_more(RosterStanding* run) {
  *run = RosterStanding(run->revision(), run->digest(), run->count() + 1, run->has_state());
}
void one_more(RosterProfileRun* run) { *run = RosterProfileRun(run->profile(), run->count() + 1); }

/// Calls take(value, index) for the members that runs of a column cover, which must be all of them.
template <class Run, class Take>
void for_each_of(const std::vector<Run>& runs, size_t members, const char* what, Take take) {
  size_t at = 0;
  for (const Run& run : runs) {
    require(run.count() > 0 && run.count() <= members - at, what);
    for (uint32_t i = 0; i < run.count(); ++i) take(run, at++);
  }
  require(at == members, what);
}

}  // namespace

std::unique_ptr<RosterT> write_roster(const std::vector<hvd::Member>& members, const Known* known) {
  auto roster = std::make_unique<RosterT>();
  roster->base = known != nullptr ? known->generation : 0;
  const std::vector<int32_t> former = former_ranks(members, known);
  std::unordered_map<std::string_view, uint32_t> hosts;
  std::unordered_map<std::string, uint32_t> profiles;
  AddressWriter addresses;
  References references;
  uint32_t profile = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const hvd::Member& member = members[i];
    const bool is_new = former[i] < 0;
    const bool goes_on =
        i > 0 && (is_new ? former[i - 1] < 0 : former[i] == former[i - 1] + 1 && former[i - 1] >= 0);
    if (!goes_on) roster->runs.emplace_back(former[i], 0);
    one_more(&roster->runs.back());
    if (is_new) {
      roster->workers.push_back(member.worker);
      const auto [host, first] = hosts.try_emplace(member.host, static_cast<uint32_t>(hosts.size()));
      if (first) roster->hosts.push_back(member.host);
      roster->host_of.push_back(host->second);
    }
    const hvd::Member* before = i > 0 ? &members[i - 1] : nullptr;
    if (before == nullptr || before->revision != member.revision || before->digest != member.digest ||
        before->has_state != member.has_state) {
      roster->standings.emplace_back(member.revision, wire::Digest(member.digest.low, member.digest.high), 0,
                                     member.has_state);
    }
    one_more(&roster->standings.back());
    if (before == nullptr || !same_profile(*before, member)) {
      const auto [found, first] =
          profiles.try_emplace(profile_key(member), static_cast<uint32_t>(profiles.size()));
      if (first) roster->profiles.push_back(write_profile(member));
      profile = found->second;
      roster->profile_of.emplace_back(profile, 0);
    }
    one_more(&roster->profile_of.back());
    const hvd::Member* own = is_new ? nullptr : &known->members[static_cast<size_t>(former[i])];
    for (const Offer& offer : member.offers) {
      if (!offer.brought()) continue;
      addresses.add(offer.address, references.of(own, offer.backend));
      references.remember(offer.backend, offer.address);
    }
  }
  const std::vector<int32_t> rising = rising_local_ranks(members);
  const bool rises =
      std::equal(members.begin(), members.end(), rising.begin(), rising.end(),
                 [](const hvd::Member& member, int32_t rank) { return member.local_rank == rank; });
  if (!rises) {
    for (const hvd::Member& member : members) roster->local_ranks.push_back(member.local_rank);
  }
  roster->addresses = std::move(addresses.bytes);
  return roster;
}

std::vector<hvd::Member> read_roster(const RosterT& roster, const Known* known) {
  if (roster.base != 0 && (known == nullptr || known->generation != roster.base)) {
    throw Error(HVD_INVALID,
                fmt::format("a roster that goes on from generation {}, which this worker does not know",
                            roster.base));
  }
  std::vector<hvd::Member> members;
  std::vector<const hvd::Member*> former;
  size_t newcomers = 0;
  require(roster.host_of.size() == roster.workers.size(), "workers without hosts");
  for (const RosterRun& run : roster.runs) {
    require(run.count() > 0 && run.count() <= kMostMembers - members.size(), "too many members");
    const bool is_new = run.from() < 0;
    if (is_new) {
      require(run.count() <= roster.workers.size() - newcomers, "members of whom nothing is told");
    } else {
      const size_t there = roster.base != 0 ? known->members.size() : 0,
                   from = static_cast<size_t>(run.from());
      require(from <= there && run.count() <= there - from, "members that were none before");
    }
    for (uint32_t i = 0; i < run.count(); ++i) {
      hvd::Member& member = members.emplace_back();
      if (!is_new) {
        const hvd::Member& own = known->members[static_cast<size_t>(run.from()) + i];
        member.worker = own.worker;
        member.host = own.host;
        former.push_back(&own);
        continue;
      }
      const uint32_t host = roster.host_of[newcomers];
      require(host < roster.hosts.size(), "a worker on a host that is not told");
      member.worker = roster.workers[newcomers++];
      member.host = roster.hosts[host];
      former.push_back(nullptr);
    }
  }
  require(newcomers == roster.workers.size(), "workers that are no members");
  for_each_of(roster.standings, members.size(), "standings that are not those of its members",
              [&](const RosterStanding& standing, size_t i) {
                members[i].has_state = standing.has_state();
                members[i].revision = standing.revision();
                members[i].digest = to_digest(&standing.digest());
              });
  std::vector<std::vector<Offer>> profiles;
  for (const auto& profile : roster.profiles) {
    require(profile != nullptr, "no profile");
    profiles.push_back(read_offers(profile->backends));
    for (const Offer& offer : profiles.back())
      require(offer.address.empty(), "an address among the profiles");
  }
  AddressReader addresses(roster.addresses);
  References references;
  for_each_of(roster.profile_of, members.size(), "profiles that are not those of its members",
              [&](const RosterProfileRun& run, size_t i) {
                require(run.profile() < profiles.size(), "a profile that is not told");
                members[i].offers = profiles[run.profile()];
                size_t bytes = 0;
                for (Offer& offer : members[i].offers) {
                  if (!offer.brought()) continue;
                  offer.address = addresses.read(references.of(former[i], offer.backend));
                  bytes += offer.address.size();
                  references.remember(offer.backend, offer.address);
                }
                require(bytes <= kMostAddress, "addresses of one worker that are too long");
              });
  addresses.finish();
  require(roster.local_ranks.empty() || roster.local_ranks.size() == members.size(),
          "local ranks that are not those of its members");
  const std::vector<int32_t> local_ranks =
      roster.local_ranks.empty() ? rising_local_ranks(members) : roster.local_ranks;
  for (size_t i = 0; i < members.size(); ++i) members[i].local_rank = local_ranks[i];
  return members;
}

}  // namespace hvd::wire
