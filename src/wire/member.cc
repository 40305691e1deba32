// Members and their offers to and from the tables of control.fbs.
#include "wire/member.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"
#include "base/text.h"

namespace hvd::wire {
namespace {

std::string objection_to(const std::vector<Offer>& offers) {
  if (offers.size() > kMostOffers) {
    return fmt::format("{} backends: expected at most {}", offers.size(), kMostOffers);
  }
  size_t bytes = 0;
  for (size_t i = 0; i < offers.size(); ++i) {
    const Offer& offer = offers[i];
    if (offer.backend.empty() || offer.backend.size() > kLongestName ||
        printable(offer.backend) != offer.backend) {
      return fmt::format("a backend named '{}': expected 1 to {} bytes of text",
                         printable(offer.backend, kLongestName), kLongestName);
    }
    for (size_t earlier = 0; earlier < i; ++earlier) {
      if (offers[earlier].backend == offer.backend) return "backend " + offer.backend + " twice";
    }
    if (!offer.brought() && !offer.address.empty()) {
      return fmt::format("backend {} with an address and a reason why it is lacking", offer.backend);
    }
    bytes += offer.address.size();
    if (bytes > kMostAddress) {
      return fmt::format("addresses of {} bytes up to that of backend {}: expected at most {}", bytes,
                         offer.backend, kMostAddress);
    }
  }
  if (!offers.empty() && !offers[0].brought()) return "no backend for host memory";
  return "";
}

}  // namespace

Addresses write_offers(const std::vector<Offer>& offers) {
  if (const std::string objection = objection_to(offers); !objection.empty())
    throw Error(HVD_INTERNAL, "this worker brings " + objection);
  Addresses result;
  for (const Offer& offer : offers) {
    auto address = std::make_unique<AddressT>();
    address->backend = offer.backend;
    address->lacking = printable(offer.lacking, kLongestReason);
    address->memories = offer.memories;
    address->dtypes = offer.dtypes;
    address->collectives = offer.collectives;
    address->blob = offer.address;
    result.push_back(std::move(address));
  }
  return result;
}

std::vector<Offer> read_offers(const Addresses& addresses) {
  std::vector<Offer> result;
  for (const auto& a : addresses) {
    if (a == nullptr) continue;
    result.push_back(
        {a->backend, printable(a->lacking, kLongestReason), a->memories, a->dtypes, a->collectives, a->blob});
  }
  if (const std::string objection = objection_to(result); !objection.empty())
    throw Error(HVD_INVALID, "a worker that brings " + objection);
  return result;
}

Settings write_settings(const std::vector<hvd::Setting>& settings) {
  Settings result;
  for (const hvd::Setting& s : settings) {
    auto setting = std::make_unique<SettingT>();
    setting->name = s.name;
    setting->value = s.value;
    result.push_back(std::move(setting));
  }
  return result;
}

std::vector<hvd::Setting> read_settings(const Settings& settings) {
  if (settings.size() > kMostSettings) {
    throw Error(HVD_INVALID, fmt::format("a worker with {} settings: expected at most {}", settings.size(),
                                         kMostSettings));
  }
  std::vector<hvd::Setting> result;
  for (const auto& s : settings) {
    if (s == nullptr) continue;
    if (s->name.empty() || s->name.size() > kLongestSetting || s->value.size() > kLongestSetting) {
      throw Error(HVD_INVALID, fmt::format("a setting of {} and {} bytes: expected at most {} each",
                                           s->name.size(), s->value.size(), kLongestSetting));
    }
    result.push_back({printable(s->name), printable(s->value)});
    const std::string& name = result.back().name;
    const auto first =
        std::find_if(result.begin(), result.end(), [&](const auto& r) { return r.name == name; });
    if (first != result.end() - 1) throw Error(HVD_INVALID, fmt::format("setting {} twice", name));
  }
  return result;
}

std::unique_ptr<MemberT> write_member(const hvd::Member& member) {
  auto result = std::make_unique<MemberT>();
  result->worker = member.worker;
  result->host = member.host;
  result->local_rank = member.local_rank;
  result->has_state = member.has_state;
  result->revision = member.revision;
  result->digest = std::make_unique<wire::Digest>(member.digest.low, member.digest.high);
  result->addresses = write_offers(member.offers);
  return result;
}

hvd::Member read_member(const MemberT& m) {
  hvd::Member member;
  member.worker = m.worker;
  member.host = m.host;
  member.offers = read_offers(m.addresses);
  member.local_rank = m.local_rank;
  member.has_state = m.has_state;
  member.revision = m.revision;
  member.digest = to_digest(m.digest.get());
  return member;
}

}  // namespace hvd::wire
