/**
 * The own mutations of one document, from the change to the place in the base.
 *
 *     | stored, place not seen yet | under way | not sent yet |
 *     0                      storedCount      next        length
 *
 * - Clocks grow from left to right and are never used twice.
 * - What is stored is not sent again. It stays until the base has it, since the router does not send it back:
 *   at its place in the stream there is only its clock.
 * - At most `windowMax` mutations are under way, so that much unsent work does not flood a router.
 * - Whatever is kept is kept in the journal too, before it is sent.
 */
import { LimitError } from "./errors.js";
import { utf8Length, type Json } from "./json.js";

export interface OwnMutation {
  /** Changes only as long as it was never sent. */
  clock: number;
  readonly mutation: Json;
  readonly bytes: number;
  /** Whether a router may know it. */
  sent: boolean;
}

export interface SendLimits {
  readonly count: number;
  readonly bytes: number;
  readonly window: number;
}

export const SEND_LIMITS: SendLimits = { count: 10_000, bytes: 16 * 1024 * 1024, window: 256 };

/** Keeps the buffer for after a reload. */
export interface Journal {
  load(): { clock: number; mutations: { clock: number; mutation: Json }[] };
  /** The mutation is new, or has got another clock. */
  keep(own: OwnMutation, firstClock: number, lastClock: number): void;
  drop(clock: number, firstClock: number, lastClock: number): void;
}

export class SendBuffer {
  private own: OwnMutation[] = [];
  private storedCount = 0;
  private next = 0;
  private bytes = 0;
  private lastClock = 0;

  constructor(
    private readonly limits: SendLimits = SEND_LIMITS,
    private readonly journal: Journal | null = null,
  ) {
    const kept = journal?.load();
    if (kept === undefined) return;
    for (const { clock, mutation } of kept.mutations) {
      // It may have been sent before the reload, or not: nobody knows.
      this.own.push({ clock, mutation, bytes: sizeOf(mutation), sent: true });
    }
    this.bytes = this.own.reduce((sum, { bytes }) => sum + bytes, 0);
    this.lastClock = kept.clock;
  }

  /** What is not known to be stored, in the order of the clocks. */
  get unacknowledged(): readonly OwnMutation[] {
    return this.own.slice(this.storedCount);
  }

  /** What the base may not have yet, in the order of the clocks. */
  get onTop(): readonly OwnMutation[] {
    return this.own;
  }

  /** Throws LimitError if the buffer is full. */
  add(mutation: Json): OwnMutation {
    const bytes = sizeOf(mutation);
    const advice = "wait until what is unsent has been saved";
    if (this.own.length >= this.limits.count) {
      throw new LimitError("the number of unsent mutations", this.own.length + 1, this.limits.count, advice);
    }
    if (this.bytes + bytes > this.limits.bytes) {
      throw new LimitError("the size of unsent mutations in bytes", this.bytes + bytes, this.limits.bytes, advice);
    }
    this.lastClock += 1;
    const own: OwnMutation = { clock: this.lastClock, mutation, bytes, sent: false };
    this.own.push(own);
    this.bytes += bytes;
    this.journal?.keep(own, this.firstClock, this.lastClock);
    return own;
  }

  /** A subscription begins: everything that is not stored is to be sent again. */
  restart(): void {
    this.next = this.storedCount;
  }

  /** The next mutation to send, if there is one and the window is open. */
  takeNext(): OwnMutation | undefined {
    if (this.next - this.storedCount >= this.limits.window) return undefined;
    const own = this.own[this.next];
    if (own === undefined) return undefined;
    own.sent = true;
    this.next += 1;
    return own;
  }

  /** Everything up to `clock` is stored. Returns what was not known to be. */
  cover(clock: number): OwnMutation[] {
    const before = this.storedCount;
    for (let own = this.own[before]; own !== undefined && own.sent && own.clock <= clock; ) {
      this.storedCount += 1;
      own = this.own[this.storedCount];
    }
    this.next = Math.max(this.next, this.storedCount);
    this.makeRoomAbove(clock);
    return this.own.slice(before, this.storedCount);
  }

  /** Everything stored up to `clock` is in the base now. Returns how many that were. */
  forget(clock: number): number {
    let count = 0;
    while (count < this.storedCount && (this.own[count]?.clock ?? Infinity) <= clock) count += 1;
    for (const own of this.own.splice(0, count)) this.dropped(own);
    this.storedCount -= count;
    this.next -= count;
    return count;
  }

  /** All that is stored belongs to a document that is no more. */
  forgetStored(): void {
    this.forget(Infinity);
  }

  find(clock: number): OwnMutation | undefined {
    return this.own.find((own) => own.clock === clock);
  }

  /** The router refused it for good. */
  refuse(clock: number): OwnMutation | undefined {
    const index = this.own.findIndex((own, place) => own.clock === clock && place >= this.storedCount);
    const own = this.own[index];
    if (own === undefined) return undefined;
    this.own.splice(index, 1);
    if (index < this.next) this.next -= 1;
    this.dropped(own);
    return own;
  }

  // The router knows clocks of this client that it does not know itself: an earlier life under the same id.
  // What was never sent cannot be among them, so it moves to clocks that are free.
  private makeRoomAbove(clock: number): void {
    const firstUnsent = this.own.findIndex((own) => !own.sent);
    const isTaken = firstUnsent >= 0 && (this.own[firstUnsent]?.clock ?? 0) <= clock;
    if (!isTaken) {
      this.lastClock = Math.max(this.lastClock, clock);
      return;
    }
    const moved = this.own.slice(firstUnsent);
    const freed = new Set(moved.map((own) => own.clock));
    this.lastClock = clock + moved.length;
    moved.forEach((own, index) => {
      own.clock = clock + 1 + index;
      freed.delete(own.clock);
    });
    // From the last one on, so that none is written over before it has been written anew.
    for (const own of moved.reverse()) this.journal?.keep(own, this.firstClock, this.lastClock);
    for (const old of freed) this.journal?.drop(old, this.firstClock, this.lastClock);
  }

  private dropped(own: OwnMutation): void {
    this.bytes -= own.bytes;
    this.journal?.drop(own.clock, this.firstClock, this.lastClock);
  }

  private get firstClock(): number {
    return this.own[0]?.clock ?? this.lastClock + 1;
  }
}

/** How many bytes it has on the wire. */
export function sizeOf(mutation: Json): number {
  return utf8Length(JSON.stringify(mutation));
}
