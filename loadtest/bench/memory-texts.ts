/** Memories to measure with: the same ones in every run. */

/** A small language of its own, Zipf-like as real ones are, so that texts differ and common words are common. */
const words = Array.from({ length: 20_000 }, (_, i) => wordOf(i));
function wordOf(i: number): string {
  const parts = "ba co di fu ga he ki lo mi nu pa re si to va wo xe yi zu ra".split(" ");
  let word = "";
  for (let left = i + 400; left > 0; left = Math.floor(left / parts.length)) word += parts[left % parts.length];
  return word;
}
const real = (
  "meeting invoice customer deploy server error payment contract project deadline budget release database network " +
  "security password travel hotel flight weather family birthday dinner recipe garden music football doctor medicine " +
  "school teacher exam holiday market price stock bank loan house repair engine battery camera phone computer software"
).split(" ");
let state = 88_172_645;
function random(): number {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) / 2 ** 32;
}
const word = () => words[Math.floor(words.length * random() ** 3)]!;
/** What memories are about. A text takes most of its words from one topic, as people do when they write one down. */
const topics = Array.from(
  { length: 500 },
  () => Array.from({ length: 25 }, () => random() < 0.5 ? real[Math.floor(random() * real.length)]! : word()),
);
export const textOf = (length: number) => {
  const topic = topics[Math.floor(random() * topics.length)]!;
  return Array.from({ length }, () => random() < 0.6 ? topic[Math.floor(random() * topic.length)]! : word()).join(" ");
};
export const types = ["episodic", "semantic", "procedural", "entity", "reflection", "reasoning"];
export const memoryOf = () => ({
  type: types[Math.floor(random() * types.length)],
  scope: "institutional",
  title: textOf(4),
  content: textOf(20 + Math.floor(random() * 20)),
});
