// Tasks over the framework's threads: each thread takes the next number until none is left.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "boundary.h"
#include "problem.h"

namespace relgraph {

template <class Body, class End> struct TaskQueue {
  const Body* body;
  const End* end;
  int64_t tasks;
  std::atomic<int64_t> next{0}, thread{0};
  std::atomic<bool> failed{false};
  // How the first failed, because an exception that leaves a thread of the pool would end the process. Text and a number:
  // std::exception_ptr needs a libstdc++ newer than the oldest system of the wheels.
  int64_t error = 0;
  char why[256] = "";

  // The work of one thread. Its number among the threads decides which part of a workspace it uses.
  static void work(void* given) {
    TaskQueue& queue = *static_cast<TaskQueue*>(given);
    const int64_t thread = queue.thread++;
    queue.attempt([&] {
      for (int64_t task; !queue.failed && (task = queue.next++) < queue.tasks;) (*queue.body)(task, thread);
    });
    queue.attempt(*queue.end);
  }

  template <class Piece> void attempt(const Piece& piece) {
    const int64_t code = guarded([&] { return piece(), 0; });
    if (code == 0 || failed.exchange(true)) return;
    error = code;
    std::snprintf(why, sizeof why, "%s", message());
  }
};

// body(task, thread) for every task, on at most this many threads, and end() on each of them when no task is left for
// it. Which thread runs a task must not change its result. What a task throws is thrown again here.
template <class Body, class End>
void for_each_task(int64_t tasks, int64_t threads, Parallel parallel, const Body& body, const End& end) {
  if (tasks <= 0) return;
  TaskQueue<Body, End> queue{&body, &end, tasks};
  threads = std::min(threads, tasks);
  if (threads > 1 && parallel) parallel(TaskQueue<Body, End>::work, &queue, unsigned(threads), 0);
  else TaskQueue<Body, End>::work(&queue);
  if (queue.error == OUT_OF_MEMORY) throw std::bad_alloc();
  if (queue.error) throw std::runtime_error(queue.why);
}

template <class Body> void for_each_task(int64_t tasks, int64_t threads, Parallel parallel, const Body& body) {
  for_each_task(tasks, threads, parallel, body, [] {});
}

}  // namespace relgraph
