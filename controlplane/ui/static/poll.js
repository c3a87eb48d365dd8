// Calls `step` again and again: soon while it works, ever more seldom while it fails, never while nobody looks.

const EVERY_MS = 2000;
const LONGEST_MS = 30000;

export class Poll {
  constructor(step, failed) {
    this.step = step;
    this.failed = failed;
    this.failures = 0;
    this.timer = 0;
    this.running = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.now()));
    window.addEventListener("online", () => this.now());
  }

  stop() {
    clearTimeout(this.timer);
  }

  async now() {
    this.stop();
    if (this.running) return;
    this.running = true;
    let wait = EVERY_MS;
    try {
      await this.step();
      this.failures = 0;
    } catch (error) {
      wait = Math.min(EVERY_MS * 2 ** this.failures, LONGEST_MS) * (0.8 + 0.4 * Math.random());
      this.failures += 1;
      if (this.failed(error, wait) === false) wait = 0;
    } finally {
      this.running = false;
    }
    if (wait && !document.hidden) this.timer = setTimeout(() => this.now(), wait);
  }
}
