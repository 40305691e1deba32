// Starts workers, with all that they need to know.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "driver/supervisor_impl.h"
#include "driver/torchrun.h"
#include "wire/tls.h"

namespace hvd::driver {

void Supervisor::perform(membership::StartWorker& action) {
  Worker& worker = add_worker(action.worker);
  worker.host = action.host;
  worker.slot = action.slot;
  note(HVD_LOG_DEBUG, "starting " + name_of(action.worker));
  launch::LaunchRequest request{action.worker, action.host, action.slot, config_.environment};
  const Settings& s = config_.settings;
  for (const auto& [name, value] :
       {std::pair<const char*, std::string>{"HVD_DRIVER", driver_endpoint()},
        {"HVD_JOB", s.job},
        {"HVD_SECRET", wire::key_text(s.secret, wire::worker_identity(action.worker))},
        {"HVD_WORKER", std::to_string(action.worker)},
        {"HVD_HOST", action.host},
        {"HVD_SLOT", std::to_string(action.slot)}}) {
    request.environment.push_back(fmt::format("{}={}", name, value));
  }
  for (std::string& entry : torchrun_of(action)) request.environment.push_back(std::move(entry));
  launcher_->start(std::move(request));
}

/// In the first generation ranks follow the order in which workers are started.
std::vector<std::string> Supervisor::torchrun_of(const membership::StartWorker& action) {
  const Settings& s = config_.settings;
  if (!s.torchrun) return {};
  if (master_.empty()) {
    const std::string endpoint = driver_endpoint();
    const bool here = !config_.is_here || config_.is_here(action.host);
    master_ = !s.master_addr.empty() ? s.master_addr
              : here                 ? endpoint.substr(0, endpoint.rfind(':'))
                                     : action.host;
    if (master_.size() > 2 && master_.front() == '[') master_ = master_.substr(1, master_.size() - 2);
    master_port_ = s.master_port != 0 ? s.master_port : free_port();
  }
  const auto host =
      std::find_if(hosts_.begin(), hosts_.end(), [&](const auto& h) { return h.name == action.host; });
  TorchrunPlace place;
  place.number = static_cast<int64_t>(action.worker) - 1;
  place.slot = action.slot;
  place.host_slots = host == hosts_.end() ? 1 : host->slots;
  place.world = first_size_;
  place.first = membership_->generation() == 0;
  place.master = master_;
  place.port = master_port_;
  return torchrun_variables(place);
}

}  // namespace hvd::driver
