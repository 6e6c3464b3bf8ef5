import { Writer } from './writer.js';

export default function Page() {
  return <Writer />;
}
