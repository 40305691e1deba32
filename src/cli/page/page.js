// Asks /status every second and shows what it says. Text goes in as text: nothing of it is ever read as HTML.
"use strict";
const PHASES = ["detection", "abort", "restore", "forming", "connecting", "sync"];
const MOST_WORKERS = 200, MOST_POINTS = 120, PERIOD = 1000;
const byId = id => document.getElementById(id);
const rates = [];
let heard = null, spoken = "", timer = 0;

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function duration(s) {
  if (s === null || s === undefined) return "–";
  if (s < 0.0995) return (s * 1000).toFixed(s < 0.00995 ? 1 : 0) + " ms";
  if (s < 60) return s.toFixed(s < 10 ? 2 : 1) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
}
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  for (; n >= 1024 && i + 1 < units.length; ++i) n /= 1024;
  return (i ? n.toFixed(1) : n) + " " + units[i];
}
const rate = x => x >= 100 ? x.toFixed(0) : x.toPrecision(2).replace(/\.0$/, "");
const clock = seconds => new Date(seconds * 1000).toLocaleTimeString([], {hour12: false});

function figure(name, value, unit = "") {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, " ", element("small", {}, unit)));
}

function showFigures(s) {
  const last = [...s.generations].reverse().find(g => g.recovery);
  byId("figures").replaceChildren(
    figure("Generation", String(s.generation), s.resets === 1 ? "1 reset" : s.resets + " resets"),
    figure("Workers", String(s.size), "of " + s.workers_alive + " alive, " + s.slots + " slots"),
    figure("Commits", rate(s.commits_per_second), "a second"),
    figure("Goodput", s.goodput === null ? "–" : (100 * s.goodput).toFixed(1), s.goodput === null ? "" : "% of " + duration(s.wall_seconds)),
    figure("Last recovery", last ? duration(last.recovery.total_seconds) : "–"),
    figure("Synced", bytes(s.sync_bytes)));
}

function showRate(s) {
  rates.push({rate: s.commits_per_second, generation: s.generation});
  if (rates.length > MOST_POINTS) rates.shift();
  const most = Math.max(1e-9, ...rates.map(p => p.rate));
  const x = i => 600 - (rates.length - 1 - i) * 600 / (MOST_POINTS - 1), y = r => 96 - 88 * r / most;
  const points = rates.map((p, i) => x(i).toFixed(1) + "," + y(p.rate).toFixed(1)).join(" ");
  const picture = drawn("svg", {viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img",
    "aria-label": "Commits a second over the last two minutes: now " + rate(s.commits_per_second) + ", at most " + rate(most)});
  picture.append(drawn("line", {class: "base", x1: 0, x2: 600, y1: 96, y2: 96}));
  rates.forEach((p, i) => {
    if (i && p.generation !== rates[i - 1].generation) picture.append(drawn("line", {class: "reset", x1: x(i), x2: x(i), y1: 4, y2: 96}));
  });
  if (rates.length > 1) {
    picture.append(drawn("polygon", {class: "area", points: x(0).toFixed(1) + ",96 " + points + " 600,96"}),
      drawn("polyline", {class: "line", points}));
  }
  byId("rate").replaceChildren(picture);
}

function showHosts(s) {
  const inSlot = new Map(s.workers.map(w => [w.host + "\n" + w.slot, w]));
  const hosts = new Map(s.hosts.map(h => [h.name, h]));
  for (const w of s.workers) if (!hosts.has(w.host)) hosts.set(w.host, {name: w.host, slots: 0, failures: 0});
  byId("hosts").replaceChildren(...[...hosts.values()].slice(0, MOST_WORKERS).map(h => {
    const slots = element("ul", {class: "slots", "aria-label": "Slots of " + h.name});
    const own = s.workers.filter(w => w.host === h.name).map(w => w.slot);
    for (let slot = 0; slot < Math.min(Math.max(h.slots, 0, ...own.map(n => n + 1)), 1024); ++slot) {
      const w = inSlot.get(h.name + "\n" + slot);
      const label = "slot " + slot + ": " + (w ? (w.rank >= 0 ? "rank " + w.rank + ", " : "") + w.state : "empty");
      slots.append(element("li", {class: w ? w.state : "empty", title: label, "aria-label": label},
        w ? w.rank >= 0 ? String(w.rank) : "…" : "·"));
    }
    const note = h.blocked ? "blocked" + (h.blocked_for_seconds ? " for " + duration(h.blocked_for_seconds) : "")
      : h.drained ? "drained" : h.slots === 0 ? "gone" : h.failures ? h.failures + (h.failures === 1 ? " failure" : " failures") : "";
    return element("li", {}, element("h3", {}, h.name, element("span", {class: "quiet"}, note)), slots);
  }));
}

function phasesOf(recovery, longest) {
  const picture = drawn("svg", {class: "phases", viewBox: "0 0 300 14", preserveAspectRatio: "none", role: "img"});
  let at = 0, rest = recovery.total_seconds + recovery.detection_seconds;
  const words = [];
  const put = (name, seconds) => {
    const width = 300 * seconds / longest;
    if (width > 0) picture.append(drawn("rect", {class: name, x: at.toFixed(2), y: 1, width: Math.max(width, 0.6).toFixed(2), height: 12},
      drawn("title", {}, name + " " + duration(seconds))));
    at += width;
  };
  for (const phase of PHASES) {
    const seconds = recovery[phase + "_seconds"];
    put(phase, seconds);
    rest -= seconds;
    if (seconds > 0) words.push(phase + " " + duration(seconds));
  }
  if (rest > 0) { put("rest", rest); words.push("the rest " + duration(rest)); }
  picture.setAttribute("aria-label", words.join(", "));
  return picture;
}

function showHistory(s) {
  const shown = s.generations.slice(-20).reverse();
  const longest = Math.max(1e-9, ...shown.filter(g => g.recovery).map(g => g.recovery.total_seconds + g.recovery.detection_seconds));
  const causes = {start: "the job began", peer_lost: "a worker was lost", hosts_updated: "hosts changed"};
  byId("history").replaceChildren(...shown.map(g => element("tr", {},
    element("th", {scope: "row", class: "number"}, String(g.generation)),
    element("td", {class: "number"}, String(g.size)), element("td", {class: "number"}, duration(g.seconds) + (g.over ? "" : " so far")),
    element("td", {class: "number"}, g.recovery ? duration(g.recovery.total_seconds) : "–"),
    element("td", {}, g.recovery ? phasesOf(g.recovery, longest) : "–"),
    element("td", {class: "because"}, g.reason || causes[g.cause]))));
}

function showWorkers(s) {
  byId("workers").replaceChildren(...s.workers.slice(0, MOST_WORKERS).map(w => element("tr", {},
    element("th", {scope: "row", class: "number"}, w.rank >= 0 ? String(w.rank) : "–"),
    element("td", {class: "number"}, String(w.worker)), element("td", {}, w.host + ":" + w.slot),
    element("td", {}, w.state), element("td", {class: "number"}, String(w.revision)),
    element("td", {class: "number"}, rate(w.commits_per_second)),
    element("td", {class: "number"}, w.silent_seconds === null ? "–" : w.silent_seconds < 2 ? "now" : duration(w.silent_seconds) + " ago"))));
  byId("more").hidden = s.workers.length <= MOST_WORKERS;
  byId("more").textContent = "and " + (s.workers.length - MOST_WORKERS) + " more: /status has all of them";
}

function showLog(s) {
  const log = byId("log"), below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.replaceChildren(...s.log.map(line => element("li", {}, element("time", {datetime: new Date(line.time * 1000).toISOString()},
    clock(line.time)), line.text)));
  if (below) log.scrollTop = log.scrollHeight;
}

function show(s) {
  document.title = s.phase + " · " + s.job;
  byId("job").textContent = s.job;
  byId("sentence").textContent = s.sentence;
  byId("phase").textContent = s.phase;
  byId("phase").className = "badge " + s.phase;
  byId("stall").hidden = !s.stalled_operations && !s.stall;
  byId("stall").textContent = s.stall;
  byId("version").textContent = "libhvd " + s.version;
  showFigures(s); showRate(s); showHosts(s); showHistory(s); showWorkers(s); showLog(s);
  const news = "Job " + s.phase + ", generation " + s.generation + ", " + s.size + " workers";
  if (news !== spoken) byId("announce").textContent = spoken = news;
}

function gone() {
  const banner = byId("gone"), text = "The driver is gone. " + (heard ? "This is what it said at " + clock(heard.time) + "." : "It has said nothing yet.");
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = false;
  document.body.className = "stale";
  byId("phase").textContent = "gone";
  byId("phase").className = "badge failed";
}

async function look() {
  clearTimeout(timer);
  try {
    const answer = await fetch("/status", {cache: "no-store", signal: AbortSignal.timeout(5000)});
    if (!answer.ok) throw new Error(answer.statusText);
    heard = await answer.json();
    byId("gone").hidden = true;
    document.body.className = "";
    show(heard);
  } catch (error) {
    gone();
  }
  timer = setTimeout(look, PERIOD);
}

byId("legend").replaceChildren(...[...PHASES, "rest"].map(name => element("li", {class: name}, name === "rest" ? "the rest" : name)));
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
look();
