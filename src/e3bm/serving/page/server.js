// Talks to the server; what goes wrong becomes an Error whose message is a sentence.

const TRIES = 6;

export async function ask(method, path, body) {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await send(method, path, body);
    const later = Number(answer.headers.get("Retry-After"));
    if (answer.status === 503 && later && attempt < TRIES) {
      await pause(later);
      continue;
    }
    if (answer.status === 204) return null;
    if (answer.ok && answer.headers.get("Content-Type") === "application/octet-stream") return answer.blob();
    const told = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(told.error || `The server answered with status ${answer.status}.`);
    return told;
  }
}

export function photosForm(files, fields = {}) {
  const form = new FormData();
  for (const file of files) form.append("photos", file);
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  return form;
}

async function send(method, path, body) {
  const options = { method };
  if (body instanceof FormData) options.body = body;
  else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  try {
    return await fetch(path, options);
  } catch {
    throw new Error("The server does not answer; is it still running?");
  }
}

function pause(seconds) {
  return new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
}
