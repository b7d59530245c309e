/** Which addresses a delivery may be pushed to: those of the public internet, unless the operator says otherwise. */
import { lookup as resolve, type LookupAddress } from "node:dns";
import { BlockList, isIP, type LookupFunction } from "node:net";

const closed = new BlockList();
const ranges: [string, number][] = [
  ["0.0.0.0", 8],
  ["10.0.0.0", 8],
  ["100.64.0.0", 10],
  ["127.0.0.0", 8],
  ["169.254.0.0", 16],
  ["172.16.0.0", 12],
  ["192.0.0.0", 24],
  ["192.0.2.0", 24],
  ["192.31.196.0", 24],
  ["192.52.193.0", 24],
  ["192.88.99.0", 24],
  ["192.168.0.0", 16],
  ["192.175.48.0", 24],
  ["198.18.0.0", 15],
  ["198.51.100.0", 24],
  ["203.0.113.0", 24],
  ["224.0.0.0", 3],
];
for (const [network, bits] of ranges) closed.addSubnet(network, bits, "ipv4");

/** Of IPv6 only what is handed out for global use, and of that nothing that stands for an IPv4 address. */
const open6 = new BlockList();
open6.addSubnet("2000::", 3, "ipv6");
const closed6 = new BlockList();
for (
  const [network, bits] of [["2001::", 23], ["2001:db8::", 32], ["2002::", 16], ["3fff::", 20], ["5f00::", 16]] as const
) closed6.addSubnet(network, bits, "ipv6");

export function isPublic(address: string): boolean {
  const family = isIP(address);
  if (family === 4) return !closed.check(address, "ipv4");
  return family === 6 && open6.check(address, "ipv6") && !closed6.check(address, "ipv6");
}

export class PrivateTarget extends Error {
  override readonly name = "PrivateTarget";
}

/** A name may lead anywhere, and elsewhere the next time: what is connected to is exactly what was looked at here. */
export const publicLookup: LookupFunction = (hostname, options, done) => {
  resolve(hostname, { ...options, all: true }, (error, addresses: LookupAddress[]) => {
    if (error) return done(error, "", 0);
    const refused = addresses.find(({ address }) => !isPublic(address));
    if (refused || addresses.length === 0) return done(new PrivateTarget(`${hostname} is not a public address`), "", 0);
    if (options.all) return done(null, addresses);
    done(null, addresses[0]!.address, addresses[0]!.family);
  });
};

/** An address instead of a name is never looked up, so it is looked at before. */
export const isAllowedHost = (hostname: string): boolean => {
  const bare = hostname.replace(/^\[|\]$/g, "");
  return isIP(bare) === 0 || isPublic(bare);
};
