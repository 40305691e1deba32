// How an agent is started on another host: a template as --agent has it, and which names are this machine's.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace hvd::agent {

/// Words of a command line, as a shell would cut them: blanks separate, '...' and "..." hold together, a
/// backslash takes the next character as it is. Nothing is expanded. Throws Error(HVD_INVALID) that names
/// option agent: no word, a quote that is not closed, no {host}, another name in braces.
std::vector<std::string> parse_template(const std::string& text);

/// The whole command: the template's words for this host, then the agent's own. What a remote shell will read
/// again, as behind ssh and its like, is quoted for it; srun, kubectl exec and the like pass words on as they
/// are.
std::vector<std::string> agent_command(const std::vector<std::string>& words, const std::string& host,
                                       const std::vector<std::string>& agent);

/// A word so that a POSIX shell reads it as it is.
std::string quoted(const std::string& word);
/// Words for people: quoted where needed, separated by blanks.
std::string shown(const std::vector<std::string>& words);

/// Names and addresses of this machine: localhost, its host name long and short, its interfaces' addresses.
std::set<std::string> own_names();
bool is_own(const std::set<std::string>& names, const std::string& host);

/// "address:port" under which others may reach a socket that is bound to `address`: every address of this
/// machine if it is bound to all of them; those of loopback alone if there are no others.
std::vector<std::string> reachable_endpoints(const std::string& address, uint16_t port);

}  // namespace hvd::agent
