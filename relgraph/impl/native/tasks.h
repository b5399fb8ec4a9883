// Tasks over the framework's threads: each thread takes the next number until none is left.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "problem.h"

namespace relgraph {

template <class Body> struct TaskQueue {
  const Body* body;
  int64_t tasks;
  std::atomic<int64_t> next{0}, thread{0};

  // What one thread does. Its number among the threads tells it which part of a workspace is its own.
  static void work(void* given) {
    TaskQueue& queue = *static_cast<TaskQueue*>(given);
    const int64_t thread = queue.thread++;
    for (int64_t task; (task = queue.next++) < queue.tasks;) (*queue.body)(task, thread);
  }
};

// body(task, thread) for every task, on at most this many threads. Which thread runs a task must not change its result.
template <class Body> void for_each_task(int64_t tasks, int64_t threads, Parallel parallel, const Body& body) {
  if (tasks <= 0) return;
  TaskQueue<Body> queue{&body, tasks};
  threads = std::min(threads, tasks);
  if (threads > 1 && parallel) parallel(TaskQueue<Body>::work, &queue, unsigned(threads), 0);
  else TaskQueue<Body>::work(&queue);
}

}  // namespace relgraph
