// Paths of the status server and where their answers come from.
#include "cli/job_page.h"

#include <chrono>
#include <memory>
#include <stdexcept>

#include "cli/page_assets.h"

namespace hvd::cli {
namespace {

constexpr std::chrono::milliseconds kFresh{200};  // an answer serves all who ask within this time
constexpr char kPlain[] = "text/plain; charset=utf-8";

std::string described(hvd_driver* driver, hvd_driver_format format) {
  hvd_error error = HVD_ERROR_INIT;
  char* text = nullptr;
  if (hvd_driver_describe(driver, format, &text, &error) != HVD_OK) throw std::runtime_error(error.message);
  const std::unique_ptr<char, void (*)(void*)> owned(text, hvd_free);
  return owned.get();
}

/// However many ask, the driver is asked a few times a second.
class Cached {
 public:
  Cached(hvd_driver* driver, hvd_driver_format format) : driver_(driver), format_(format) {}
  const std::string& text() {
    const auto now = std::chrono::steady_clock::now();
    if (text_.empty() || now - at_ > kFresh) {
      text_ = described(driver_, format_);
      at_ = now;
    }
    return text_;
  }

 private:
  hvd_driver* const driver_;
  const hvd_driver_format format_;
  std::string text_;
  std::chrono::steady_clock::time_point at_{};
};

HttpAnswer readiness(hvd_driver* driver) {
  // No more than what is told at once: a probe is cheap.
  hvd_driver_status_info info{};
  info.struct_size = offsetof(hvd_driver_status_info, stall);
  hvd_error error = HVD_ERROR_INIT;
  if (hvd_driver_get_status(driver, &info, &error) != HVD_OK) throw std::runtime_error(error.message);
  if (info.phase == HVD_PHASE_RUNNING) return {200, kPlain, "ready\n"};
  return {503, kPlain,
          "no generation is formed" + (*info.sentence != 0 ? ": " + std::string(info.sentence) : "") + "\n"};
}

}  // namespace

HttpHandler job_pages(hvd_driver* driver) {
  const auto json = std::make_shared<Cached>(driver, HVD_DRIVER_FORMAT_JSON);
  const auto metrics = std::make_shared<Cached>(driver, HVD_DRIVER_FORMAT_OPENMETRICS);
  return [=](const std::string& path) -> HttpAnswer {
    if (path == "/livez") return {200, kPlain, "alive\n"};
    if (path == "/readyz") return readiness(driver);
    if (path == "/status") return {200, "application/json", json->text()};
    if (path == "/metrics")
      return {200, "application/openmetrics-text; version=1.0.0; charset=utf-8", metrics->text()};
    if (path == "/") return {200, "text/html; charset=utf-8", page::kHtml};
    if (path == "/page.css") return {200, "text/css; charset=utf-8", page::kStyle};
    if (path == "/page.js") return {200, "text/javascript; charset=utf-8", page::kScript};
    if (path == "/icon.svg") return {200, "image/svg+xml", page::kIcon};
    return {404, kPlain, "no such page: / /status /metrics /livez /readyz\n"};
  };
}

}  // namespace hvd::cli
