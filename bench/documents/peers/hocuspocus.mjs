// Hocuspocus as it comes: its defaults, merging of updates on (flushDelay 0).
//
//   PORT    where it listens, on loopback
//   FOLDER  keep documents there; without it they live in memory
//
// Documents are kept by its SQLite extension, or by its database extension with one file for each
// where the SQLite binding could not be installed. Both store what Hocuspocus hands them, when it
// does: 2 s after the last change, 10 s after the first one.

import { createHash } from "node:crypto";
import { mkdirSync } from "node:fs";
import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Server } from "@hocuspocus/server";

async function storageIn(folder) {
  mkdirSync(folder, { recursive: true });
  try {
    const { SQLite } = await import("@hocuspocus/extension-sqlite");
    return new SQLite({ database: join(folder, "documents.sqlite") });
  } catch (error) {
    console.log(`no SQLite here (${error.message}): a file for each document`);
    const { Database } = await import("@hocuspocus/extension-database");
    const fileOf = (name) => join(folder, createHash("sha256").update(name).digest("hex"));
    return new Database({
      fetch: ({ documentName }) => readFile(fileOf(documentName)).catch(() => null),
      store: async ({ documentName, state }) => {
        await writeFile(`${fileOf(documentName)}.new`, state);
        await rename(`${fileOf(documentName)}.new`, fileOf(documentName));
      },
    });
  }
}

const folder = process.env.FOLDER;
const server = new Server({
  address: "127.0.0.1",
  port: Number(process.env.PORT),
  quiet: true,
  extensions: folder ? [await storageIn(folder)] : [],
});
await server.listen();
