// Prints the table of backends for hvdrun --check-build.
#include "cli/check_build.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "hvd/hvd.h"

namespace hvd::cli {
namespace {

bool has(uint64_t bits, int32_t number) { return (bits >> number & 1) != 0; }

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

std::string memories_of(const hvd_available_backend_info& report) {
  std::vector<std::string> names;
  if (has(report.memories, HVD_MEMORY_HOST)) names.emplace_back("host");
  if (has(report.memories, HVD_MEMORY_CUDA)) names.emplace_back("CUDA");
  return joined(names);
}

std::string dtypes_of(const hvd_available_backend_info& report) {
  std::vector<std::string> names;
  for (hvd_dtype dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
    if (has(report.dtypes, dtype)) names.emplace_back(hvd_dtype_name(dtype));
  }
  return joined(names);
}

std::string collectives_of(const hvd_available_backend_info& report) {
  constexpr std::pair<hvd_collective, const char*> kNames[] = {
      {HVD_COLLECTIVE_BROADCAST, "broadcast"},         {HVD_COLLECTIVE_ALLREDUCE, "allreduce"},
      {HVD_COLLECTIVE_ALLGATHER, "allgather"},         {HVD_COLLECTIVE_BARRIER, "barrier"},
      {HVD_COLLECTIVE_REDUCESCATTER, "reducescatter"}, {HVD_COLLECTIVE_ALLTOALL, "alltoall"},
  };
  std::vector<std::string> names;
  for (const auto& [collective, name] : kNames) {
    if (has(report.collectives, collective)) names.emplace_back(name);
  }
  return joined(names);
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

void check(hvd_status status, const hvd_error& error) {
  if (status != HVD_OK) throw std::runtime_error(error.message);
}

/// *ret_usable: whether one of them can serve a job of several workers.
std::string table(const hvd_options* options, bool* ret_usable) {
  hvd_error error = HVD_ERROR_INIT;
  size_t count = 0;
  check(hvd_get_available_backend_count(options, &count, &error), error);
  std::vector<hvd_available_backend_info> reports(count);
  size_t name_width = 7, version_width = 7;
  for (size_t i = 0; i < count; ++i) {
    reports[i].struct_size = sizeof(reports[i]);
    check(hvd_get_available_backend(options, i, &reports[i], &error), error);
    name_width = std::max(name_width, std::string(reports[i].name).size());
    version_width = std::max(version_width, std::string(reports[i].version).size());
  }
  const auto line = [&](const std::string& usable, const std::string& name, const std::string& version,
                        const std::string& memory, const std::string& path) {
    return padded(usable, 6) + "  " + padded(name, name_width) + "  " + padded(version, version_width) +
           "  " + padded(memory, 10) + "  " + path + "\n";
  };
  std::string text = std::string("libhvd ") + hvd_version() + "\n\n";
  text += line("usable", "backend", "version", "memory", "path");
  const std::string margin(8, ' ');
  bool any = false;
  for (const hvd_available_backend_info& report : reports) {
    const bool built_in = *report.path == 0;
    const bool known = report.memories != 0;
    text += line(report.usable != 0 ? "yes" : "no", report.name, known ? report.version : "-",
                 known ? memories_of(report) : "-",
                 built_in ? "built in, for a worker that is alone" : report.path);
    if (known) {
      text += margin + "dtypes: " + dtypes_of(report) + "\n";
      text += margin + "collectives: " + collectives_of(report) + "\n";
      if (!built_in) {
        text +=
            margin + "backend ABI version " + std::to_string(report.abi_version) +
            (report.local != 0 ? "; fast inside a host by itself" : "") +
            (report.max_instances > 0 ? "; at most " + std::to_string(report.max_instances) + " in a process"
                                      : "") +
            "\n";
      }
    }
    if (report.usable == 0) text += margin + "not usable: " + report.reason + "\n";
    any |= report.usable != 0 && !built_in && has(report.memories, HVD_MEMORY_HOST);
  }
  text += any ? "\n" : "\nNo backend can serve a job of several workers.\n";
  *ret_usable = any;
  return text;
}

}  // namespace

int check_build(const std::vector<std::pair<std::string, std::string>>& settings) {
  hvd_options* options = nullptr;
  hvd_error error = HVD_ERROR_INIT;
  int result = 1;
  try {
    check(hvd_options_create(&options, &error), error);
    result = 2;
    for (const auto& [key, text] : settings) {
      check(hvd_options_set(options, key.c_str(), text.c_str(), &error), error);
    }
    result = 1;
    bool usable = false;
    std::fputs(table(options, &usable).c_str(), stdout);
    if (usable) result = 0;
  } catch (const std::exception& failure) { std::fprintf(stderr, "hvdrun: %s\n", failure.what()); }
  hvd_options_destroy(options);
  return result;
}

}  // namespace hvd::cli
