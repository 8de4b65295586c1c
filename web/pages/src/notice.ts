/** One sentence for whoever is at the page, for a few seconds or for as long as it holds. */
import { byId } from "./svg.js";

const SHOWN_MS = 6000;

export class Notice {
  private readonly element = byId<HTMLElement>("notice");
  /** What holds until `endStanding`; something passing may be shown over it. */
  private standing: string | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;

  show(message: string, stands = false): void {
    if (stands) this.standing = message;
    this.put(message);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.put(this.standing), SHOWN_MS);
  }

  endStanding(): void {
    if (this.standing === null) return;
    if (this.element.textContent === this.standing) this.put(null);
    this.standing = null;
  }

  private put(message: string | null): void {
    this.element.hidden = message === null;
    if (message !== null) this.element.textContent = message;
  }
}
