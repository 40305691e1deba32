// Members and their offers between the plain structs of base/member.h and the tables of control.fbs.
#pragma once

#include <memory>
#include <vector>

#include "base/member.h"
#include "wire/messages.h"

namespace hvd::wire {

inline constexpr size_t kMostOffers = 16, kLongestName = 32, kLongestReason = 200;
inline constexpr size_t kMostAddress = size_t{1} << 20;  // of all backends of a worker together
inline constexpr size_t kMostSettings = 32, kLongestSetting = 256;

using Addresses = std::vector<std::unique_ptr<AddressT>>;
using Settings = std::vector<std::unique_ptr<SettingT>>;

/// Reasons are cut to kLongestReason. Throws Error(HVD_INTERNAL) for what read_offers would not take.
Addresses write_offers(const std::vector<Offer>& offers);
/// Bytes from the network: throws Error(HVD_INVALID) that says what is wrong with them.
std::vector<Offer> read_offers(const Addresses& addresses);

Settings write_settings(const std::vector<hvd::Setting>& settings);
std::vector<hvd::Setting> read_settings(const Settings& settings);

std::unique_ptr<MemberT> write_member(const hvd::Member& member);
hvd::Member read_member(const MemberT& member);

}  // namespace hvd::wire
