/** What a process says about itself: which release it is, and what it takes of the machine. */
import { type EventLoopUtilization, performance } from "node:perf_hooks";
import process from "node:process";
import type { Meter } from "@opentelemetry/api";

/** Read when somebody looks, never in between. */
export function observeProcess(meter: Meter, version: string): void {
  const startedAt = Date.now() / 1_000;
  meter.createObservableGauge("build_info", { description: "Always 1; the label says which release runs" })
    .addCallback((result) => result.observe(1, { version }));
  meter.createObservableGauge("process_start_time_seconds", { description: "When the process started" })
    .addCallback((result) => result.observe(startedAt));
  meter.createObservableGauge("process_resident_memory_bytes", { description: "Memory the process holds" })
    .addCallback((result) => result.observe(process.memoryUsage.rss()));
  meter.createObservableCounter("process_cpu_seconds", { description: "Processor time used, user and system" })
    .addCallback((result) => {
      const { user, system } = process.cpuUsage();
      result.observe((user + system) / 1e6);
    });
  let last: EventLoopUtilization | undefined;
  meter.createObservableGauge("event_loop_utilization", {
    description: "Share of time since the last look in which the event loop was busy; near 1 it is the bottleneck",
  }).addCallback((result) => {
    const now = performance.eventLoopUtilization?.();
    if (!now) return; // not every runtime tells
    result.observe(last ? performance.eventLoopUtilization(now, last).utilization : now.utilization);
    last = now;
  });
}
