// A whole job in one process: its driver and its workers' threads.
#include "elastic/job.h"

#include <cctype>
#include <sstream>

namespace hvd::test {

namespace {

void check(hvd_status status, const hvd_error& error) {
  if (status != HVD_OK) ADD_FAILURE() << hvd_status_name(status) << ": " << error.message;
}

std::vector<std::pair<std::string, int32_t>> parse_hosts(const std::string& text) {
  std::vector<std::pair<std::string, int32_t>> hosts;
  std::istringstream stream(text);
  std::string item;
  while (std::getline(stream, item, ',')) {
    const size_t colon = item.rfind(':');
    hosts.emplace_back(item.substr(0, colon), std::stoi(item.substr(colon + 1)));
  }
  return hosts;
}

}  // namespace

Job::Job(const std::string& hosts, const std::map<std::string, std::string>& options, WorkerBody body)
    : body_(std::move(body)), hosts_(parse_hosts(hosts)) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_options* raw = nullptr;
  check(hvd_options_create(&raw, &error), error);
  const OptionsPtr own(raw);
  const std::map<std::string, std::string> defaults = {
      {"discovery_interval", "0.02"}, {"heartbeat_interval", "0.2"}, {"heartbeat_timeout", "20"},
      {"elastic_timeout", "50"},      {"restart_delay_min", "0.05"}, {"join_settle", "0.05"}};
  for (const auto& [key, value] : defaults)
    check(hvd_options_set(raw, key.c_str(), value.c_str(), &error), error);
  for (const auto& [key, value] : options)
    check(hvd_options_set(raw, key.c_str(), value.c_str(), &error), error);
  check(hvd_driver_create(raw, &driver_, &error), error);
  check(hvd_driver_set_discovery(driver_, &Job::discover, this, nullptr, &error), error);
  check(hvd_driver_set_launcher(driver_, &Job::launch, &Job::stop, this, nullptr, &error), error);
}

Job::~Job() {
  hvd_driver_destroy(driver_);
  for (std::thread& thread : threads_) thread.join();
}

void Job::start() {
  hvd_error error = HVD_ERROR_INIT;
  check(hvd_driver_start(driver_, &error), error);
}

void Job::set_hosts(const std::string& hosts) {
  std::lock_guard lock(mutex_);
  hosts_ = parse_hosts(hosts);
}

hvd_status Job::wait(std::string* ret_sentence) {
  hvd_error error = HVD_ERROR_INIT;
  const hvd_status status = hvd_driver_wait(driver_, 100 * HVD_SECOND, &error);
  *ret_sentence = status == HVD_OK ? this->status().sentence : error.message;
  return status;
}

hvd_driver_status_info Job::status() const {
  hvd_driver_status_info info{};
  info.struct_size = sizeof(info);
  hvd_error error = HVD_ERROR_INIT;
  check(hvd_driver_get_status(driver_, &info, &error), error);
  return info;
}

int32_t Job::discover(void* self, hvd_add_host_fn add, void* sink) {
  Job& job = *static_cast<Job*>(self);
  std::lock_guard lock(job.mutex_);
  for (const auto& [name, slots] : job.hosts_) add(sink, name.c_str(), slots);
  return 0;
}

int32_t Job::launch(void* self, const hvd_launch* launch) {
  Job& job = *static_cast<Job*>(self);
  WorkerSeat seat{launch->worker, launch->host, launch->slot, {}};
  for (const char* const* entry = launch->environment; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    seat.environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  std::lock_guard lock(job.mutex_);
  job.threads_.emplace_back([&job, seat] {
    hvd_error error = HVD_ERROR_INIT;
    hvd_options* raw = nullptr;
    check(hvd_options_create(&raw, &error), error);
    const OptionsPtr options(raw);
    for (const auto& [name, value] : seat.environment) {
      if (!name.starts_with("HVD_")) continue;
      std::string key = name.substr(4);
      for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      check(hvd_options_set(raw, key.c_str(), value.c_str(), &error), error);
    }
    job.body_(seat, raw);
    hvd_driver_worker_exited(job.driver_, seat.worker, 0, nullptr);
  });
  return 0;
}

// A worker that is told to end gets it from its own context: hvd_run or hvd_init returns.
void Job::stop(void*, uint64_t, int32_t) {}

}  // namespace hvd::test
