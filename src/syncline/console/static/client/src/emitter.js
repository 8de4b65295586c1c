/** Events with types. A listener that throws neither stops the others nor the client: its error is thrown on its own. */
export class Emitter {
    listeners = new Map();
    /** Calls `listener` for every such event; the function that comes back takes it off again. */
    on(name, listener) {
        const listeners = this.listeners.get(name) ?? new Set();
        this.listeners.set(name, listeners);
        listeners.add(listener);
        return () => this.off(name, listener);
    }
    off(name, listener) {
        this.listeners.get(name)?.delete(listener);
    }
    emit(name, event) {
        for (const listener of [...(this.listeners.get(name) ?? [])]) {
            try {
                listener(event);
            }
            catch (error) {
                queueMicrotask(() => {
                    throw error;
                });
            }
        }
    }
}
