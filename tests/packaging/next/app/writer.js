'use client';

import { load } from 'draftree';
import { useEffect, useState } from 'react';

/** Also rendered on the server, where importing the package must do no harm. */
export function Writer() {
  const [tokens, setTokens] = useState('');
  useEffect(() => {
    const abort = new AbortController();
    const write = async () => {
      const model = await load('/model/stories260K-q8_0.gguf', { signal: abort.signal });
      const { tokens } = await model.generate('Once upon a time', { maxTokens: 24 }).result;
      setTokens(JSON.stringify(tokens));
    };
    void write();
    return () => abort.abort();
  }, []);
  return <output>{tokens}</output>;
}
