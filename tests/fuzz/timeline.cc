// Fuzzes the merge of timelines, whose files may have been cut off or written by anybody.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "cli/timeline_merge.h"
#include "fuzz.h"

namespace hvd::fuzz {
namespace {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "hvd-fuzz-XXXXXX").string();
    HVD_PROMISE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

void one_input(std::span<const uint8_t> data) {
  static const Folder folder;
  std::vector<std::string> files;
  std::string text(data.begin(), data.end());
  for (size_t number = 0; number < 3; ++number) {
    const size_t end = text.find('\f');
    files.push_back(folder.file("in" + std::to_string(number)));
    std::ofstream(files.back(), std::ios::binary) << text.substr(0, end);
    if (end == std::string::npos) break;
    text.erase(0, end + 1);
  }
  try {
    const cli::Merged merged = cli::merge_timelines(folder.file("out"), files);
    HVD_PROMISE(merged.lanes <= merged.events + files.size());
  } catch (const std::runtime_error&) {  // the promise of timeline_merge.h
  }
}

std::vector<Bytes> seeds() {
  const std::string clock =
      R"({"ph":"M","pid":1,"tid":1024,"ts":0.000,"name":"hvd_clock","args":{"wall_offset_ns":5,"worker":1,"host":"a","process":101,"version":"0.1.0"}})";
  const std::string place =
      R"({"ph":"M","pid":1,"tid":1024,"ts":0.000,"name":"process_sort_index","args":{"sort_index":0}})";
  const std::string event = R"({"ph":"i","pid":1,"tid":1025,"ts":12.250,"name":"x \"y\" \u00e9 \\"})";
  const std::string span =
      R"({"ph":"X","pid":1,"tid":1025,"ts":12.250,"dur":3.5,"name":"z","args":{"a":[1,{"b":2}]}})";
  // Numbers that are too large for what is computed from them.
  const auto numbered = [](const std::string& pid, const std::string& offset) {
    const std::string head = R"("pid":)" + pid + R"(,"tid":1024,"ts":9.000,"name":)";
    return R"({"ph":"M",)" + head + R"("hvd_clock","args":{"wall_offset_ns":)" + offset + R"(}})" + ",\n" +
           R"({"ph":"i",)" + head + R"("x"})" + "\n";
  };
  const std::string whole = "[\n" + clock + ",\n" + place + ",\n" + event + ",\n" + span + "\n]\n";
  return {bytes_of(whole),
          bytes_of(whole + "\f" + whole),
          bytes_of("[\n" + clock + ",\n" + event.substr(0, 30)),
          bytes_of("{\"traceEvents\":" + whole + "}"),
          bytes_of(numbered("188888888888888888", "5")),
          bytes_of(numbered("1", "9223372036854775807")),
          bytes_of("[]"),
          bytes_of(clock)};
}

}  // namespace hvd::fuzz
