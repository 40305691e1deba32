// What workers print, line by line, told by a thread of its own: a reader of the job's output that is
// slow holds up the workers' printing, never the driver.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/descriptor.h"
#include "base/log.h"

namespace hvd::launch {

/// Cuts a stream into lines. A line longer than `max_line` comes in pieces of that size.
class LineSplitter {
 public:
  explicit LineSplitter(size_t max_line = size_t{64} << 10) : max_line_(max_line) {}
  /// `line` is called for each line that is complete, without its newline.
  void feed(std::string_view bytes, const std::function<void(std::string line)>& line);
  /// The last line, if no newline ended it.
  void finish(const std::function<void(std::string line)>& line);

 private:
  size_t max_line_;
  std::string rest_;
  bool cut_ = false;  // the line went out in pieces: its newline alone is no line
};

struct OutputLine {
  int32_t rank = -1;
  std::string host;
  int32_t slot = 0;
  bool is_stderr = false;
  std::string text;
};

/// "[rank] text", or "[host:slot] text" before the first assignment; ends with a newline.
std::string prefixed(const OutputLine& line);

using OutputFunction = std::function<void(const OutputLine&)>;

/// Writes prefixed lines to the process's stdout and stderr.
OutputFunction standard_output();

class OutputThread {
 public:
  OutputThread(OutputFunction output, LoggerPtr logger, size_t max_queued = size_t{4} << 20);
  ~OutputThread();  // tells what is queued, at most for a second, then ends
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  /// A piece of what a worker prints, cut into lines by this thread: what waits takes as much memory as it
  /// has bytes, however short its lines are. `line` is what they have in common; the splitter is this
  /// thread's from now on.
  void lines(std::shared_ptr<LineSplitter> splitter, OutputLine line, std::string bytes);
  /// Nothing more comes: the last line, if no newline ended it.
  void last_line(std::shared_ptr<LineSplitter> splitter, OutputLine line);
  /// Opens the files "stdout" and "stderr" in a folder, for append; its path is for messages.
  void open(const std::string& path, Descriptor folder);
  /// Appends to a file of an open folder; "" closes it. A file that could not be opened was logged then.
  void append(const std::string& path, std::string bytes);

  bool full() const;
  /// `fn` is called once, from this thread, when the queue is no longer full.
  void when_drained(std::function<void()> fn);
  /// `fn` is called from this thread when all that was queued before is told.
  void flush(std::function<void()> fn);

 private:
  struct State;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace hvd::launch
