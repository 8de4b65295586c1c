/** Events with types. A listener that throws neither stops the others nor the client: its error is thrown on its own. */
export class Emitter<Events> {
  private readonly listeners = new Map<keyof Events, Set<(event: never) => void>>();

  /** Calls `listener` for every such event; the function that comes back takes it off again. */
  on<Name extends keyof Events>(name: Name, listener: (event: Events[Name]) => void): () => void {
    const listeners = this.listeners.get(name) ?? new Set();
    this.listeners.set(name, listeners);
    listeners.add(listener);
    return () => this.off(name, listener);
  }

  off<Name extends keyof Events>(name: Name, listener: (event: Events[Name]) => void): void {
    this.listeners.get(name)?.delete(listener);
  }

  protected emit<Name extends keyof Events>(name: Name, event: Events[Name]): void {
    for (const listener of [...(this.listeners.get(name) ?? [])]) {
      try {
        (listener as (event: Events[Name]) => void)(event);
      } catch (error) {
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}
