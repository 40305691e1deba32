/* Addresses, the sockets of a generation, and the thread that carries bytes over them. See plain.h. */
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "plain.h"

#define ADDRESS (4 + 2 + PLAIN_TOKEN) /* IPv4 address and port in network order, token */
#define HELLO (PLAIN_TOKEN + 4 + 8)   /* the token of whom it is for, the caller's rank, the generation */
#define STRANGERS 16 /* connections at a time that have not said who they are, beyond the peers */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * HVD_SECOND + t.tv_nsec;
}

static void put(unsigned char* at, uint64_t value, int bytes) {
  int i;
  for (i = 0; i < bytes; ++i) at[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char* at, int bytes) {
  uint64_t value = 0;
  int i;
  for (i = 0; i < bytes; ++i) value |= (uint64_t)at[i] << (8 * i);
  return value;
}

static int prepare(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

/* ---- Addresses ---- */

static int random_bytes(unsigned char* data, size_t size) {
  size_t have = 0;
  const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && have < size) {
    const ssize_t n = read(fd, data + have, size - have);
    if (n <= 0 && errno != EINTR) break;
    if (n > 0) have += (size_t)n;
  }
  if (fd >= 0) close(fd);
  return have == size;
}

hvd_status plain_address(instance* self, void* data, size_t* size, hvd_error* error) {
  struct sockaddr_in at;
  socklen_t length = sizeof(at);
  unsigned char* blob = (unsigned char*)data;
  int fd;
  if (*size < ADDRESS) {
    *size = ADDRESS;
    return plain_fail(error, HVD_INVALID, -1, 0, "an address takes %d bytes", ADDRESS);
  }
  memset(&at, 0, sizeof(at));
  at.sin_family = AF_INET;
  inet_pton(AF_INET, self->ip, &at.sin_addr);
  fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || !prepare(fd) || bind(fd, (struct sockaddr*)&at, sizeof(at)) != 0 || listen(fd, 1024) != 0 ||
      getsockname(fd, (struct sockaddr*)&at, &length) != 0 || !random_bytes(self->token, PLAIN_TOKEN)) {
    const int kept = errno;
    if (fd >= 0) close(fd);
    return plain_fail(error, HVD_UNAVAILABLE, -1, 0, "listening at %s: %s", self->ip, strerror(kept));
  }
  if (self->listener >= 0) close(self->listener);
  self->listener = fd;
  memcpy(blob, &at.sin_addr, 4);
  memcpy(blob + 4, &at.sin_port, 2);
  memcpy(blob + 6, self->token, PLAIN_TOKEN);
  *size = ADDRESS;
  return HVD_OK;
}

/* ---- Connecting ---- */

typedef struct stranger {
  int fd;
  size_t have;
  unsigned char hello[HELLO];
} stranger;

static hvd_status lost(group* g, int32_t rank, const char* what, hvd_error* error) {
  return plain_fail(error, HVD_PEER_LOST, rank, g->generation, "rank %d: %s", (int)rank, what);
}

/* Waits for one of the descriptors, or the deadline, or abort. */
static hvd_status await(group* g, struct pollfd* fds, nfds_t count, int64_t deadline, hvd_error* error) {
  for (;;) {
    const int64_t left = deadline - now_ns();
    int n, over;
    pthread_mutex_lock(&g->owner->mutex);
    over = g->over;
    pthread_mutex_unlock(&g->owner->mutex);
    if (over) return plain_fail(error, HVD_PEER_LOST, -1, g->generation, "the generation was given up");
    if (left <= 0) return plain_fail(error, HVD_TIMEOUT, -1, g->generation, "the time to connect is over");
    fds[0].fd = g->wake[0];
    fds[0].events = POLLIN;
    n = poll(fds, count, left > 60 * HVD_SECOND ? 60000 : (int)(left / HVD_MILLISECOND) + 1);
    if (n < 0 && errno != EINTR) {
      return plain_fail(error, HVD_UNAVAILABLE, -1, g->generation, "poll: %s", strerror(errno));
    }
    if (n > 0 && (fds[0].revents == 0 || n > 1)) return HVD_OK;
    if (n > 0) { /* only woken: look at `over` */
      char byte;
      while (read(g->wake[0], &byte, 1) == 1) {}
    }
  }
}

static hvd_status call(group* g, int32_t rank, const hvd_backend_member* member, int64_t deadline,
                       hvd_error* error) {
  const unsigned char* blob = (const unsigned char*)member->address;
  unsigned char hello[HELLO];
  struct sockaddr_in at;
  struct pollfd fds[2];
  int failure = 0;
  socklen_t length = sizeof(failure);
  hvd_status status;
  peer* l = &g->peers[rank];
  memset(&at, 0, sizeof(at));
  at.sin_family = AF_INET;
  memcpy(&at.sin_addr, blob, 4);
  memcpy(&at.sin_port, blob + 4, 2);
  l->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (l->fd < 0 || !prepare(l->fd)) return lost(g, rank, strerror(errno), error);
  if (connect(l->fd, (struct sockaddr*)&at, sizeof(at)) != 0 && errno != EINPROGRESS) {
    return lost(g, rank, strerror(errno), error);
  }
  memset(fds, 0, sizeof(fds));
  fds[1].fd = l->fd;
  fds[1].events = POLLOUT;
  status = await(g, fds, 2, deadline, error);
  if (status == HVD_TIMEOUT)
    return plain_fail(error, status, rank, g->generation, "rank %d does not answer", (int)rank);
  if (status != HVD_OK) return status;
  if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &failure, &length) != 0 || failure != 0) {
    return lost(g, rank, strerror(failure), error);
  }
  memcpy(hello, blob + 6, PLAIN_TOKEN);
  put(hello + PLAIN_TOKEN, (uint64_t)g->rank, 4);
  put(hello + PLAIN_TOKEN + 4, g->generation, 8);
  /* The first bytes of a connection always find room. */
  if (send(l->fd, hello, HELLO, MSG_NOSIGNAL) != HELLO) return lost(g, rank, strerror(errno), error);
  return HVD_OK;
}

/* Whether the peer that it names is one that we wait for; its connection is then the link's. */
static int welcome(instance* self, group* g, stranger* s) {
  const uint64_t rank = get(s->hello + PLAIN_TOKEN, 4);
  if (memcmp(s->hello, self->token, PLAIN_TOKEN) != 0) return 0;
  if (get(s->hello + PLAIN_TOKEN + 4, 8) != g->generation) return 0;
  if (rank <= (uint64_t)g->rank || rank >= (uint64_t)g->size || g->peers[rank].fd >= 0) return 0;
  g->peers[rank].fd = s->fd;
  return 1;
}

/* Accepts until every higher rank has called. */
static hvd_status answer(instance* self, group* g, stranger* strangers, struct pollfd* fds, size_t room,
                         int64_t deadline, hvd_error* error) {
  size_t count = 0, i;
  int32_t missing = g->size - 1 - g->rank;
  hvd_status status = HVD_OK;
  while (missing > 0 && status == HVD_OK) {
    memset(fds, 0, (room + 2) * sizeof(*fds));
    fds[1].fd = count < room ? self->listener : -1;
    fds[1].events = POLLIN;
    for (i = 0; i < count; ++i) {
      fds[2 + i].fd = strangers[i].fd;
      fds[2 + i].events = POLLIN;
    }
    status = await(g, fds, (nfds_t)(count + 2), deadline, error);
    if (status == HVD_TIMEOUT) {
      int32_t rank = g->size - 1;
      while (g->peers[rank].fd >= 0) --rank;
      plain_fail(error, status, rank, g->generation, "%d ranks have not called, one of them rank %d",
                 (int)missing, (int)rank);
    }
    if (status != HVD_OK) break;
    for (i = 0; i < count; ++i) {
      stranger* s = &strangers[i];
      ssize_t n;
      if (fds[2 + i].revents == 0) continue;
      n = recv(s->fd, s->hello + s->have, HELLO - s->have, 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n > 0) s->have += (size_t)n;
      if (n > 0 && s->have < HELLO) continue;
      if (n > 0 && welcome(self, g, s)) {
        --missing;
      } else {
        close(s->fd);
      }
      s->fd = -1;
    }
    for (i = 0; i < count;) {
      if (strangers[i].fd < 0) {
        strangers[i] = strangers[--count];
      } else {
        ++i;
      }
    }
    if (fds[1].revents != 0 && count < room) {
      const int fd = accept(self->listener, NULL, NULL);
      if (fd >= 0 && prepare(fd)) {
        memset(&strangers[count], 0, sizeof(strangers[count]));
        strangers[count++].fd = fd;
      } else if (fd >= 0) {
        close(fd);
      }
    }
  }
  for (i = 0; i < count; ++i) close(strangers[i].fd);
  return status;
}

/* Lower ranks are called, higher ones call. */
hvd_status plain_connect_links(instance* self, group* g, const hvd_backend_group* wanted, hvd_error* error) {
  const int64_t deadline = now_ns() + wanted->timeout_ns;
  const size_t room = (size_t)g->size + STRANGERS;
  hvd_status status = HVD_OK;
  int32_t i;
  stranger* strangers;
  struct pollfd* fds;
  for (i = 0; i < g->size; ++i) {
    if (wanted->members[i].address_size == ADDRESS) continue;
    return plain_fail(error, HVD_INVALID, i, g->generation,
                      "the address of rank %d has %zu bytes, expected %d", (int)i,
                      wanted->members[i].address_size, ADDRESS);
  }
  if (self->listener < 0) return plain_fail(error, HVD_INVALID, -1, g->generation, "address was not called");
  for (i = 0; i < g->rank && status == HVD_OK; ++i) status = call(g, i, &wanted->members[i], deadline, error);
  if (status == HVD_OK) {
    strangers = (stranger*)calloc(room, sizeof(*strangers));
    fds = (struct pollfd*)calloc(room + 2, sizeof(*fds));
    status = strangers != NULL && fds != NULL
                 ? answer(self, g, strangers, fds, room, deadline, error)
                 : plain_fail(error, HVD_INTERNAL, -1, g->generation, "out of memory");
    free(strangers);
    free(fds);
  }
  close(self->listener);
  self->listener = -1;
  return status;
}

/* ---- Frames ---- */

void plain_wake(group* g) {
  const char byte = 0;
  const ssize_t ignored = write(g->wake[1], &byte, 1); /* a full pipe wakes, too */
  (void)ignored;
}

void plain_push(queue* q, frame* f) {
  f->next = NULL;
  if (q->last != NULL) {
    q->last->next = f;
  } else {
    q->first = f;
  }
  q->last = f;
  q->bytes += f->size;
}

static void pop(queue* q) {
  frame* f = q->first;
  q->first = f->next;
  if (q->first == NULL) q->last = NULL;
  q->bytes -= f->size;
  free(f);
}

void plain_clear(queue* q) {
  while (q->first != NULL) pop(q);
}

frame* plain_frame(int kind, uint64_t number, const void* data, size_t size) {
  frame* f = (frame*)malloc(sizeof(frame) + size);
  if (f == NULL) return NULL;
  memset(f, 0, sizeof(*f));
  f->kind = kind;
  f->number = number;
  f->size = size;
  f->header[0] = (unsigned char)kind;
  put(f->header + 1, number, 8);
  put(f->header + 9, size, 8);
  if (data != NULL && size > 0) memcpy(f->data, data, size);
  return f;
}

/* ---- The carrier ---- */

/* Sends what is queued, as far as the socket takes it. Under the mutex; 0: the link is broken. */
static int flush(group* g, peer* l) {
  while (l->out.first != NULL) {
    frame* f = l->out.first;
    const unsigned char* at =
        f->done < PLAIN_HEADER ? f->header + f->done : f->data + (f->done - PLAIN_HEADER);
    const size_t size = f->done < PLAIN_HEADER ? PLAIN_HEADER - f->done : PLAIN_HEADER + f->size - f->done;
    if (size > 0) {
      const ssize_t n = send(l->fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      f->done += (size_t)n;
    }
    if (f->done == PLAIN_HEADER + f->size) {
      pop(&l->out);
      pthread_cond_broadcast(&g->owner->changed); /* an executor may wait for room */
    }
  }
  return 1;
}

/* A whole frame has come. */
static void arrived(group* g, int32_t rank, frame* f) {
  instance* self = g->owner;
  if (f->kind == PLAIN_MESSAGE) {
    self->host.message(self->host.context, g->generation, rank, f->data, f->size);
    free(f);
    return;
  }
  pthread_mutex_lock(&self->mutex);
  if (f->kind == PLAIN_BYE) {
    g->peers[rank].left = 1;
    free(f);
  } else {
    plain_push(&g->peers[rank].in, f);
    pthread_cond_broadcast(&self->changed);
  }
  pthread_mutex_unlock(&self->mutex);
}

/* Reads what is there. NULL, or what is wrong with the link. */
static const char* receive(group* g, int32_t rank) {
  peer* l = &g->peers[rank];
  int turns;
  for (turns = 0; turns < 64; ++turns) { /* then the others */
    unsigned char* at = l->reading != NULL ? l->reading->data + l->reading->done : l->header + l->have;
    const size_t size = l->reading != NULL ? l->reading->size - l->reading->done : PLAIN_HEADER - l->have;
    if (size > 0) {
      const ssize_t n = recv(l->fd, at, size, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return NULL;
      if (n < 0) return strerror(errno);
      if (n == 0) return "connection closed";
      *(l->reading != NULL ? &l->reading->done : &l->have) += (size_t)n;
      if ((size_t)n < size) continue;
    }
    if (l->reading == NULL) {
      const int kind = l->header[0];
      const uint64_t bytes = get(l->header + 9, 8);
      /* Nobody's word is believed: no more memory than a frame may take. */
      if (kind < PLAIN_MESSAGE || kind > PLAIN_BYE ||
          bytes > (kind == PLAIN_MESSAGE ? PLAIN_MOST_MESSAGE : PLAIN_MOST_PIECE)) {
        return "it sends what is no frame";
      }
      l->reading = plain_frame(kind, get(l->header + 1, 8), NULL, (size_t)bytes);
      if (l->reading == NULL) return "no memory for what it sends";
      l->have = 0;
    } else {
      frame* f = l->reading;
      l->reading = NULL;
      f->done = 0;
      arrived(g, rank, f);
    }
  }
  return NULL;
}

static void broke(group* g, int32_t rank, const char* why) {
  instance* self = g->owner;
  peer* l = &g->peers[rank];
  char text[160];
  int tell;
  pthread_mutex_lock(&self->mutex);
  close(l->fd);
  l->fd = -1;
  tell = !g->over && !g->leaving && !l->left;
  plain_clear(&l->out);
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->mutex);
  if (!tell) return;
  snprintf(text, sizeof(text), "plain: the link to rank %d: %s", (int)rank, why);
  self->host.failure(self->host.context, g->generation, rank, text);
}

/* One turn. 0: the group has ended. */
static int turn(group* g, struct pollfd* fds) {
  instance* self = g->owner;
  int32_t i;
  int ending, waiting = 0;
  char bytes[64];
  pthread_mutex_lock(&self->mutex);
  for (i = 0; i < g->size; ++i) {
    peer* l = &g->peers[i];
    fds[i].fd = l->fd;
    fds[i].revents = 0;
    fds[i].events = (short)(POLLIN | (l->out.first != NULL ? POLLOUT : 0));
    waiting |= l->fd >= 0 && l->out.first != NULL;
  }
  ending = g->over ? 2 : g->leaving;
  pthread_mutex_unlock(&self->mutex);
  if (ending == 2 || (ending == 1 && !waiting)) return 0;
  fds[g->size].fd = g->wake[0];
  fds[g->size].events = POLLIN;
  /* A peer that takes no goodbye is not waited for. */
  if (poll(fds, (nfds_t)g->size + 1, ending == 1 ? 200 : -1) == 0) return 0;
  while (read(g->wake[0], bytes, sizeof(bytes)) > 0) {}
  for (i = 0; i < g->size; ++i) {
    const char* why = NULL;
    if (fds[i].fd < 0 || fds[i].revents == 0) continue;
    if (fds[i].revents & POLLOUT) {
      int whole;
      pthread_mutex_lock(&self->mutex);
      whole = flush(g, &g->peers[i]);
      if (!whole) why = strerror(errno);
      pthread_mutex_unlock(&self->mutex);
    }
    if (why == NULL && (fds[i].revents & (POLLIN | POLLHUP | POLLERR))) why = receive(g, i);
    if (why != NULL) broke(g, i, why);
  }
  return 1;
}

void* plain_carry(void* group_) {
  group* g = (group*)group_;
  struct pollfd* fds = (struct pollfd*)calloc((size_t)g->size + 1, sizeof(*fds));
  if (fds == NULL) {
    g->owner->host.failure(g->owner->host.context, g->generation, -1, "plain: out of memory");
    return NULL;
  }
  while (turn(g, fds)) {}
  free(fds);
  return NULL;
}
