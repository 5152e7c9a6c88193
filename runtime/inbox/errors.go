package inbox

import "errors"

// ErrGone says that a message is no longer in the inbox: an operator removed or
// moved it after it was fetched. A handler's transaction is rolled back with it.
var ErrGone = errors.New("the message is no longer in the inbox")
