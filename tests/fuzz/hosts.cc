// Fuzzes hosts as people, scripts, host files and Slurm write them, and endpoints.
#include "base/status.h"
#include "driver/discovery.h"
#include "driver/hostfile.h"
#include "fuzz.h"
#include "wire/socket.h"

namespace hvd::fuzz {
namespace {

using Hosts = std::vector<membership::HostSlots>;

void must_be_sound(const Hosts& hosts) {
  driver::check_hosts(hosts);  // what a parser gives, a callback could have said
  for (const membership::HostSlots& host : hosts) HVD_PROMISE(!host.name.empty() && host.slots >= 1);
  HVD_PROMISE(!driver::describe_hosts(hosts).empty());
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions decisions(data);
  const uint8_t kind = decisions.byte();
  const auto rest = decisions.all();
  const std::string text(rest.begin(), rest.end());
  const int32_t slots = 1 + kind / 64;
  try {
    switch (kind % 6) {
      case 0: must_be_sound(driver::parse_fixed_hosts(text, slots)); break;
      case 1: must_be_sound(driver::parse_discovery_output(text, slots)); break;
      case 2: {
        Hosts hosts;
        while (!decisions.over()) {
          membership::HostSlots host;
          host.slots = static_cast<int32_t>(decisions.number());
          host.name = decisions.text(20);
          hosts.push_back(std::move(host));
        }
        driver::check_hosts(hosts);
        must_be_sound(hosts);
        break;
      }
      case 3: wire::parse_endpoint(text); break;
      case 4: must_be_sound(driver::parse_hostfile("F", text, slots)); break;
      default: {
        const size_t end = std::min(text.find('\n'), text.size());
        const Hosts hosts = driver::parse_slurm_nodes(text.substr(0, end),
                                                      text.substr(std::min(end + 1, text.size())), slots);
        HVD_PROMISE(!hosts.empty() && hosts.size() <= 1 << 16);
        int64_t slots = 0;
        for (const membership::HostSlots& host : hosts) {
          HVD_PROMISE(host.name.size() <= 255 && host.slots >= 1);
          slots += host.slots;
        }
        HVD_PROMISE(slots <= driver::kMostSlots);
      }
    }
  } catch (const Error& error) {
    HVD_PROMISE(error.status().code != HVD_OK && std::strlen(error.what()) > 0);
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> result;
  for (const char* text : {"a:2,b,[::1]:2", "localhost:4", "a:2,a:2", "a:0", "10.0.0.1:3,[fd77::1]"}) {
    result.push_back(bytes_of(std::string(1, '\0') + text));
  }
  for (const char* text : {"a:2\nb\n\n# none\nc:3 # three\n", "[::1]:2\r\n", "a:2\na:3\n", "host name\n"}) {
    result.push_back(bytes_of(std::string(1, '\1') + text));
  }
  result.push_back({2, 3, 1, 'a', 2, 1, 'b'});
  for (const char* text : {"127.0.0.1:4711", "[::1]:0", "host:70000"}) {
    result.push_back(bytes_of(std::string(1, '\3') + text));
  }
  for (const char* text : {"a slots=2\nb # two\n[fd77::1]:2\na slots=1", "a slots=1048576\na slots=1048576"})
    result.push_back(bytes_of(std::string(1, '\4') + text));
  for (const char* text :
       {"n[08-10,12],login\n2(x3),1,4", "r[1-2]n[1-2]\n", "n[1-60000]\n1(x60000),1(x60000)", "[1][1][1][1]\n",
        "n[18446744073709551614-18446744073709551615]"}) {
    result.push_back(bytes_of(std::string(1, '\5') + text));
  }
  return result;
}

}  // namespace hvd::fuzz
