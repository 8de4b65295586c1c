/** One sentence for whoever is at the page, for a few seconds or for as long as it holds. */
import { byId } from "./svg.js";
const SHOWN_MS = 6000;
export class Notice {
    element = byId("notice");
    /** What holds until `endStanding`; something passing may be shown over it. */
    standing = null;
    timer;
    show(message, stands = false) {
        if (stands)
            this.standing = message;
        this.put(message);
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.put(this.standing), SHOWN_MS);
    }
    endStanding() {
        if (this.standing === null)
            return;
        if (this.element.textContent === this.standing)
            this.put(null);
        this.standing = null;
    }
    put(message) {
        this.element.hidden = message === null;
        if (message !== null)
            this.element.textContent = message;
    }
}
