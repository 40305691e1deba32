// hvd-pmix-server LIBRARY SESSIONS [ADDRESS [elsewhere]]: a PMIx server for the workers of one elastic job,
// through which MPI processes that were started apart find each other (Open MPI 5 and later, which has no
// ompi-server). It starts nobody and tells nobody of anybody's end. When it serves it prints one line for the
// module mpi to stderr:
//   hvd-pmix: PMIX_NAMESPACE=<job>|PMIX_RANK=0|PMIX_SERVER_URI41=...|...
// where worker number N is process 0 of the namespace <job>@N, and <job> has 128 random bits: who was not
// told it is refused. So is whoever connects over the loopback as another user. SIGTERM ends it.
//
// LIBRARY: a file that is libpmix, or needs it (the module mpi does): so that the server is of the same
// version as its clients, and this program needs PMIx's headers alone. SESSIONS: a directory of the job's.
// ADDRESS: where it listens, "any" for whatever is no loopback; without it, the loopback. elsewhere: workers
// are on other hosts, whose directories are their own affair.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "modules/mpi_elastic/pmix_server/exchange.h"
#include "modules/mpi_elastic/pmix_server/library.h"
#include "modules/mpi_elastic/pmix_server/peers.h"

namespace hvd::pmix_server {
namespace {

constexpr size_t kLargest = size_t{64} << 10;  // value; MPI's have some hundred bytes
constexpr std::chrono::seconds kPatience{7};   // of who waits for one that does not come: as with ompi-server

// Nobody can name a process of this job who has not been told the job's name by its driver.
std::string random_word() {
  unsigned char bytes[16] = {};
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) fail("no random bytes from the kernel");
  std::string word;
  for (const unsigned char byte : bytes) {
    word += "0123456789abcdef"[byte >> 4];
    word += "0123456789abcdef"[byte & 15];
  }
  return word;
}

bool fits(const pmix_value_t& value) {
  if (value.type == PMIX_STRING)
    return value.data.string == nullptr || std::strlen(value.data.string) <= kLargest;
  if (value.type == PMIX_BYTE_OBJECT) return value.data.bo.size <= kLargest;
  return value.type != PMIX_DATA_ARRAY;
}

class Server {
 public:
  Server(std::string sessions, std::string address, bool elsewhere)
      : sessions_(std::move(sessions)),
        address_(std::move(address)),
        elsewhere_(elsewhere),
        job_("hvd" + random_word()) {}

  void start();
  void grow();
  int run(int signals);

  // Of libpmix's thread.
  void connected(const std::string& process);
  void gone(const std::string& process);
  pmix_status_t publish(const std::string& process, const pmix_info_t info[], size_t count);
  void look_up(const std::string& process, const char* key, const pmix_info_t info[], size_t count,
               pmix_lookup_cbfunc_t done, void* context);
  void unpublish(const std::string& process, char** keys);
  bool all_alive(const pmix_proc_t processes[], size_t count);
  bool known(const std::string& process) const { return process.rfind(job_ + "@", 0) == 0; }

 private:
  struct Asker {
    pmix_lookup_cbfunc_t done = nullptr;
    void* context = nullptr;
  };
  std::string name_of(uint64_t number) const { return job_ + "@" + std::to_string(number); }
  uint64_t number_of(const std::string& process) const;
  void add_namespace(uint64_t number);
  void answer(const Answers& answers);
  void wake();

  const std::string sessions_, address_;
  const bool elsewhere_;
  const std::string job_;
  uint64_t ready_ = 0;  // namespaces; of the main thread
  int wake_[2] = {-1, -1};

  std::mutex mutex_;
  Exchange exchange_{kPatience};
  uint64_t seen_ = 0, tickets_ = 0;
  std::map<uint64_t, Asker> askers_;  // by ticket
  std::set<uint64_t> dead_;           // workers
};

Server* server = nullptr;  // libpmix's callbacks have no context

uint64_t Server::number_of(const std::string& process) const {
  const size_t at = process.rfind('@');
  return at == std::string::npos ? 0 : std::strtoull(process.c_str() + at + 1, nullptr, 10);
}

void Server::wake() { (void)!write(wake_[1], "", 1); }

void Server::connected(const std::string& process) {
  std::lock_guard lock(mutex_);
  seen_ = std::max(seen_, number_of(process));
  wake();
}

void Server::gone(const std::string& process) {
  std::lock_guard lock(mutex_);
  dead_.insert(number_of(process));
  answer(exchange_.died(process));
  wake();
}

bool Server::all_alive(const pmix_proc_t processes[], size_t count) {
  std::lock_guard lock(mutex_);
  return std::none_of(processes, processes + count,
                      [&](const pmix_proc_t& one) { return dead_.contains(number_of(one.nspace)); });
}

pmix_status_t Server::publish(const std::string& process, const pmix_info_t info[], size_t count) {
  bool once = false;
  for (size_t i = 0; i < count; ++i) {
    if (std::strcmp(info[i].key, PMIX_PERSISTENCE) == 0)
      once = info[i].value.data.persist == PMIX_PERSIST_FIRST_READ;
  }
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < count; ++i) {
    if (std::strncmp(info[i].key, "pmix.", 5) == 0) continue;  // says how, not what
    if (!fits(info[i].value)) return PMIX_ERR_BAD_PARAM;
    auto* const value = new pmix_value_t;
    std::memset(value, 0, sizeof *value);
    if (pmix.copy(value, &info[i].value) != PMIX_SUCCESS) {
      delete value;
      continue;
    }
    const auto release = [](const void* one) {
      auto* const it = static_cast<pmix_value_t*>(const_cast<void*>(one));
      // What MPI publishes; of others' values what they point to is kept.
      if (it->type == PMIX_STRING) std::free(it->data.string);
      if (it->type == PMIX_BYTE_OBJECT) std::free(it->data.bo.bytes);
      delete it;
    };
    const auto answers = exchange_.publish(process, info[i].key, Value(value, release), once);
    if (!answers) return PMIX_ERR_OUT_OF_RESOURCE;
    answer(*answers);
  }
  return PMIX_SUCCESS;
}

void Server::look_up(const std::string& process, const char* key, const pmix_info_t info[], size_t count,
                     pmix_lookup_cbfunc_t done, void* context) {
  bool waits = false;
  for (size_t i = 0; i < count; ++i) waits = waits || std::strcmp(info[i].key, PMIX_WAIT) == 0;
  std::lock_guard lock(mutex_);
  const uint64_t ticket = ++tickets_;
  askers_[ticket] = {done, context};
  answer(exchange_.look_up(process, key, ticket, waits, std::chrono::steady_clock::now()));
  wake();
}

void Server::unpublish(const std::string& process, char** keys) {
  std::lock_guard lock(mutex_);
  for (; keys != nullptr && *keys != nullptr; ++keys) exchange_.unpublish(process, *keys);
}

// libpmix hands what the callback gets to its thread before it returns.
void Server::answer(const Answers& answers) {
  for (const Answer& one : answers) {
    const auto asker = askers_.find(one.ticket);
    if (asker == askers_.end()) continue;
    const Asker it = asker->second;
    askers_.erase(asker);
    if (one.result != Answer::Result::kFound) {
      const pmix_status_t why = one.result == Answer::Result::kAbsent ? PMIX_ERR_NOT_FOUND
                                : one.result == Answer::Result::kLost ? PMIX_ERR_LOST_CONNECTION
                                                                      : PMIX_ERR_TIMEOUT;
      it.done(why, nullptr, 0, it.context);
      continue;
    }
    pmix_pdata_t data;
    std::memset(&data, 0, sizeof data);
    std::strncpy(data.proc.nspace, one.owner.c_str(), PMIX_MAX_NSLEN);
    std::strncpy(data.key, one.key.c_str(), PMIX_MAX_KEYLEN);
    data.value = *static_cast<const pmix_value_t*>(one.value.get());
    it.done(PMIX_SUCCESS, &data, 1, it.context);
  }
}

// ---- what libpmix calls ----

pmix_status_t on_connected(const pmix_proc_t* process, void*, pmix_op_cbfunc_t done, void* context) {
  // libpmix believes the user that a client over TCP claims to be; the kernel knows who it is.
  close_strangers();
  if (!server->known(process->nspace)) return PMIX_ERR_INVALID_CRED;
  server->connected(process->nspace);
  done(PMIX_SUCCESS, context);
  return PMIX_SUCCESS;
}
pmix_status_t on_finalized(const pmix_proc_t* process, void*, pmix_op_cbfunc_t done, void* context) {
  server->gone(process->nspace);
  done(PMIX_SUCCESS, context);
  return PMIX_SUCCESS;
}
// One that gives up ends itself; the others' business it is not.
pmix_status_t on_abort(const pmix_proc_t*, void*, int, const char[], pmix_proc_t[], size_t,
                       pmix_op_cbfunc_t done, void* context) {
  done(PMIX_SUCCESS, context);
  return PMIX_SUCCESS;
}
// A namespace has one process: nothing is missing.
pmix_status_t on_fence(const pmix_proc_t processes[], size_t count, const pmix_info_t[], size_t, char* data,
                       size_t size, pmix_modex_cbfunc_t done, void* context) {
  if (!server->all_alive(processes, count)) return PMIX_ERR_LOST_CONNECTION;
  done(PMIX_SUCCESS, data, size, context, std::free, data);
  return PMIX_SUCCESS;
}
// libpmix has what its clients know: this is about one that it has not.
pmix_status_t on_direct_modex(const pmix_proc_t*, const pmix_info_t[], size_t, pmix_modex_cbfunc_t, void*) {
  return PMIX_ERR_NOT_FOUND;
}
pmix_status_t on_publish(const pmix_proc_t* process, const pmix_info_t info[], size_t count,
                         pmix_op_cbfunc_t done, void* context) {
  const pmix_status_t status = server->publish(process->nspace, info, count);
  if (status != PMIX_SUCCESS) return status;
  done(PMIX_SUCCESS, context);
  return PMIX_SUCCESS;
}
pmix_status_t on_look_up(const pmix_proc_t* process, char** keys, const pmix_info_t info[], size_t count,
                         pmix_lookup_cbfunc_t done, void* context) {
  if (keys == nullptr || keys[0] == nullptr || keys[1] != nullptr) return PMIX_ERR_NOT_SUPPORTED;
  server->look_up(process->nspace, keys[0], info, count, done, context);
  return PMIX_SUCCESS;
}
pmix_status_t on_unpublish(const pmix_proc_t* process, char** keys, const pmix_info_t[], size_t,
                           pmix_op_cbfunc_t done, void* context) {
  server->unpublish(process->nspace, keys);
  done(PMIX_SUCCESS, context);
  return PMIX_SUCCESS;
}
// All processes that are alive have called.
pmix_status_t on_connect(const pmix_proc_t processes[], size_t count, const pmix_info_t[], size_t,
                         pmix_op_cbfunc_t, void*) {
  return server->all_alive(processes, count) ? PMIX_OPERATION_SUCCEEDED : PMIX_ERR_LOST_CONNECTION;
}
pmix_status_t on_disconnect(const pmix_proc_t[], size_t, const pmix_info_t[], size_t, pmix_op_cbfunc_t,
                            void*) {
  return PMIX_OPERATION_SUCCEEDED;
}
pmix_status_t on_register_events(pmix_status_t*, size_t, const pmix_info_t[], size_t, pmix_op_cbfunc_t,
                                 void*) {
  return PMIX_OPERATION_SUCCEEDED;
}
pmix_status_t on_deregister_events(pmix_status_t*, size_t, pmix_op_cbfunc_t, void*) {
  return PMIX_OPERATION_SUCCEEDED;
}

// In this process: a client's connection is lost.
void on_event(size_t, pmix_status_t, const pmix_proc_t* source, pmix_info_t[], size_t, pmix_info_t[], size_t,
              pmix_event_notification_cbfunc_fn_t done, void* context) {
  server->gone(source->nspace);
  if (done != nullptr) done(PMIX_EVENT_ACTION_COMPLETE, nullptr, 0, nullptr, nullptr, context);
}

// Later versions have a longer table than these headers may know, and copy all of theirs.
struct Table {
  pmix_server_module_t known;
  void* later[64];
};

Table table_of_callbacks() {
  Table table;
  std::memset(&table, 0, sizeof table);
  table.known.client_connected = on_connected;
  table.known.client_finalized = on_finalized;
  table.known.abort = on_abort;
  table.known.fence_nb = on_fence;
  table.known.direct_modex = on_direct_modex;
  table.known.publish = on_publish;
  table.known.lookup = on_look_up;
  table.known.unpublish = on_unpublish;
  table.known.connect = on_connect;
  table.known.disconnect = on_disconnect;
  table.known.register_events = on_register_events;
  table.known.deregister_events = on_deregister_events;
  return table;
}

// ---- the main thread ----

void Server::start() {
  if (pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) fail(std::strerror(errno));
  static Table table = table_of_callbacks();
  Infos infos;
  infos.add(PMIX_SERVER_TMPDIR, sessions_);
  infos.add(PMIX_SYSTEM_TMPDIR, sessions_);
  if (!address_.empty()) {
    const bool yes = true;
    infos.add(PMIX_SERVER_REMOTE_CONNECTIONS, &yes, PMIX_BOOL);
    if (address_ != "any") infos.add(PMIX_TCP_IF_INCLUDE, address_ + "/32");
  }
  if (const pmix_status_t status = pmix.init(&table.known, infos.data(), infos.size());
      status != PMIX_SUCCESS)
    fail(std::string("PMIx_server_init: ") + pmix.text(status));

  pmix_status_t lost = PMIX_ERR_LOST_CONNECTION;
  pmix.register_handler(&lost, 1, nullptr, 0, on_event, nullptr, nullptr);
  grow();

  pmix_proc_t first;
  std::memset(&first, 0, sizeof first);
  std::strncpy(first.nspace, name_of(1).c_str(), PMIX_MAX_NSLEN);
  char** variables = nullptr;
  if (const pmix_status_t status = pmix.setup_fork(&first, &variables); status != PMIX_SUCCESS)
    fail(std::string("PMIx_server_setup_fork: ") + pmix.text(status));
  std::string line = "hvd-pmix: PMIX_NAMESPACE=" + job_;
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    // Of the namespace there are many, and names of hosts the workers know themselves.
    if (std::strncmp(*variables, "PMIX_NAMESPACE=", 15) == 0) continue;
    if (std::strncmp(*variables, "PMIX_HOSTNAME=", 14) == 0) continue;
    if (elsewhere_ && std::strstr(*variables, "_TMPDIR=") != nullptr) continue;
    line += std::string("|") + *variables;
  }
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Server::grow() {
  uint64_t wanted = 0;
  {
    std::lock_guard lock(mutex_);
    wanted = namespaces_for(seen_);
  }
  while (ready_ < wanted) add_namespace(++ready_);
}

void Server::add_namespace(uint64_t number) {
  static const std::string host = [] {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return std::string(name);
  }();
  const std::string name = name_of(number);
  char *nodes = nullptr, *processes = nullptr;
  if (pmix.node_map(host.c_str(), &nodes) != PMIX_SUCCESS ||
      pmix.process_map("0", &processes) != PMIX_SUCCESS)
    fail("PMIx can't describe one process on one node");
  Infos own;
  const pmix_rank_t rank = 0;
  own.add(PMIX_RANK, &rank, PMIX_PROC_RANK);
  own.add16(PMIX_LOCAL_RANK, 0);
  own.add16(PMIX_NODE_RANK, 0);
  own.add32(PMIX_APPNUM, 0);
  Infos infos;
  for (const char* key : {PMIX_UNIV_SIZE, PMIX_JOB_SIZE, PMIX_LOCAL_SIZE, PMIX_MAX_PROCS, PMIX_JOB_NUM_APPS})
    infos.add32(key, 1);
  infos.add(PMIX_NODE_MAP, nodes, PMIX_REGEX);
  infos.add(PMIX_PROC_MAP, processes, PMIX_REGEX);
  if (!elsewhere_) {
    infos.add(PMIX_TMPDIR, sessions_);
    infos.add(PMIX_NSDIR, sessions_ + "/" + name);
  }
  pmix_data_array_t array;
  array.type = PMIX_INFO;
  array.size = own.size();
  array.array = own.data();
  infos.add(PMIX_PROC_DATA, &array, PMIX_DATA_ARRAY);

  Waiter registered, added;
  registered.check(
      pmix.register_namespace(name.c_str(), 1, infos.data(), infos.size(), Waiter::done, &registered),
      "PMIx_server_register_nspace");
  pmix_proc_t process;
  std::memset(&process, 0, sizeof process);
  std::strncpy(process.nspace, name.c_str(), PMIX_MAX_NSLEN);
  added.check(pmix.register_client(&process, getuid(), getgid(), nullptr, Waiter::done, &added),
              "PMIx_server_register_client");
}

int Server::run(int signals) {
  for (;;) {
    int timeout = -1;
    {
      std::lock_guard lock(mutex_);
      const Time now = std::chrono::steady_clock::now();
      answer(exchange_.expire(now));
      if (const auto next = exchange_.next()) {
        timeout =
            1 + static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(*next - now).count());
      }
    }
    grow();
    pollfd watched[] = {{signals, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    if (poll(watched, 2, timeout) < 0 && errno != EINTR) return 1;
    if (watched[0].revents != 0) return 0;
    char drained[256];
    while (read(wake_[0], drained, sizeof drained) > 0) continue;
  }
}

}  // namespace
}  // namespace hvd::pmix_server

int main(int argc, char** argv) {
  using namespace hvd::pmix_server;
  if (argc < 3 || argc > 5) fail("usage: hvd-pmix-server LIBRARY SESSIONS [ADDRESS [elsewhere]]");
  sigset_t set;
  sigemptyset(&set);
  for (const int one : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, one);
  sigprocmask(SIG_BLOCK, &set, nullptr);  // before libpmix has threads
  signal(SIGPIPE, SIG_IGN);
  const int signals = signalfd(-1, &set, SFD_CLOEXEC);
  if (signals < 0) fail(std::strerror(errno));
  // Others than "hash" tell clients things by files, which stay behind.
  setenv("PMIX_MCA_gds", "hash", 0);
  load_library(argv[1]);
  server = new Server(argv[2], argc > 3 ? argv[3] : "", argc > 4);
  server->start();
  // Without PMIx_server_finalize: nobody is to be waited for, and the directory is the job's.
  _exit(server->run(signals));
}
